// NetworkChecks examines interfaces, names of peers, ports and the rendezvous, as seen from one pod.
#pragma once

#include <vector>

#include "base/config.h"
#include "bootstrap/launchers/platform.h"
#include "cli/doctor/findings.h"

namespace fdl {

std::vector<Finding> check_network(const Environment& environment, const Config& config, const Platform& platform);

}  // namespace fdl
