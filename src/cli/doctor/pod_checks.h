// PodChecks examines what a pod, a container or a host provides to its ranks: limits, memory, cores, devices,
// variables.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "cli/doctor/findings.h"

namespace fdl {

// `root` is prepended to paths such as /dev; it is empty except in tests.
std::vector<Finding> check_pod(const Environment& environment, const Config& config, const std::string& root = {});

}  // namespace fdl
