// This header handles Horovod's variables that are not aliases of a setting: a few are translated, and the others have
// no effect here.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace fdl {

// Translates HOROVOD_ variables that set a value under another form: HOROVOD_STALL_CHECK_DISABLE=1 is
// stall_warning_s 0. The result maps a setting to (variable, value). A setting's own variable takes precedence.
std::map<std::string, std::pair<std::string, std::string>> translate_horovod_variables(
    const std::map<std::string, std::string>& variables);

// Returns one line for each HOROVOD_ variable that is set but has no effect, with the reason.
std::vector<std::string> horovod_variables_without_meaning(const std::map<std::string, std::string>& variables);

}  // namespace fdl
