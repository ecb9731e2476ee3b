// NetworkChecks: interfaces, names of peers, ports and the way to the rendezvous, as far as one pod can see them.
#pragma once

#include <vector>

#include "base/config.h"
#include "program/findings.h"
#include "world/surroundings.h"

namespace fdl {

std::vector<Finding> check_network(const Environment& environment, const Config& config, const Surroundings& around);

}  // namespace fdl
