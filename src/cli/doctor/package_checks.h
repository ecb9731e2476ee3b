// PackageChecks takes the findings about Python and its packages, which the command makes before it starts the program.
#pragma once

#include <string_view>
#include <vector>

#include "bootstrap/launchers/launchers.h"
#include "cli/doctor/findings.h"

namespace fdl {

// The wheel's command sets it: findings about Python and its packages.
constexpr std::string_view kFindingsVariable = "FARANDOLE_RUN_FINDINGS";

// Empty if the program was not started by the wheel's command.
std::vector<Finding> check_packages(const Environment& environment);

}  // namespace fdl
