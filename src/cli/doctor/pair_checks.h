// PairChecks measures latency, bandwidth and clock skew between every pair of hosts of a world.
#pragma once

#include <vector>

#include "cli/doctor/findings.h"

namespace fdl {

// Collective over the world that the environment describes. Rank 0 returns the findings, the others none. `code` is set
// to the process's exit code when the world or a measurement fails, and is otherwise unchanged.
std::vector<Finding> check_pairs(int& code);

}  // namespace fdl
