// ClusterChecks reports which tools for creating and using clusters are on this workstation, and their versions.
#pragma once

#include <vector>

#include "base/config.h"
#include "cli/doctor/findings.h"

namespace fdl {

std::vector<Finding> check_cluster_tools(const Environment& environment);

}  // namespace fdl
