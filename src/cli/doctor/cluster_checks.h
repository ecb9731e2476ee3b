// ClusterChecks: which of the tools that make and reach a cluster are on this workstation, and in which versions.
#pragma once

#include <vector>

#include "base/config.h"
#include "cli/doctor/findings.h"

namespace fdl {

std::vector<Finding> check_cluster_tools(const Environment& environment);

}  // namespace fdl
