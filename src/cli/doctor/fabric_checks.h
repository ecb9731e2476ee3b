// FabricChecks examines libfabric and the EFA devices of this pod or host.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "bootstrap/topology/efa.h"
#include "cli/doctor/findings.h"

namespace fdl {

// Opens libfabric. `facts` are those of this host; `root` is prepended to /dev.
std::vector<Finding> check_fabric(const Config& config, const EfaFacts& facts, const std::string& root);

}  // namespace fdl
