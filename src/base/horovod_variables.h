// Horovod's variables that are no knob under another name: the few that are translated, and those without a meaning
// here.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace fdl {

// What HOROVOD_ variables say of a knob beyond its alias: HOROVOD_STALL_CHECK_DISABLE=1 is stall_warning_s 0.
// {knob: (variable, value)}; knobs that are set under their own name win.
std::map<std::string, std::pair<std::string, std::string>> translate_horovod_variables(
    const std::map<std::string, std::string>& variables);

// One line for each HOROVOD_ variable that is set and does nothing: which, and why.
std::vector<std::string> horovod_variables_without_meaning(const std::map<std::string, std::string>& variables);

}  // namespace fdl
