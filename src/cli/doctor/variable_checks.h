// VariableChecks examines the variables that a rank finds: misspelt settings, settings without effect, threads.
#pragma once

#include <vector>

#include "base/config.h"
#include "bootstrap/launchers/launchers.h"
#include "cli/doctor/findings.h"

namespace fdl {

// `local_ranks`: how many ranks share this host; `cores`: how many they may use.
std::vector<Finding> check_variables(const Environment& environment, const Config& config, int local_ranks, int cores);

}  // namespace fdl
