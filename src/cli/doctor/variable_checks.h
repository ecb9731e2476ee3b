// VariableChecks examines the variables that a rank finds: misspelt settings, settings without effect, threads.
#pragma once

#include <string_view>
#include <vector>

#include "base/config.h"
#include "bootstrap/launchers/launchers.h"
#include "cli/doctor/findings.h"

namespace fdl {

// `local_ranks`: how many ranks share this host; `cores`: how many they may use.
std::vector<Finding> check_variables(const Environment& environment, const Config& config, int local_ranks, int cores);

// Where this host is in the network. Bad if the variables or the file that say so are not valid.
Finding check_location(const Environment& environment, const Config& config, std::string_view host_name);

}  // namespace fdl
