// PodChecks: what a pod, a container or a host gives its ranks: limits, memory, cores, devices, libraries, variables.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "cli/doctor/findings.h"

namespace fdl {

// `root` stands in front of /dev and the like; empty but in tests. FARANDOLE_SYSFS_ROOT replaces /sys.
std::vector<Finding> check_pod(const Environment& environment, const std::string& root = {});

}  // namespace fdl
