// PairChecks: between the ranks of a world: latency, bandwidth and clocks of every pair of hosts, the slowest named.
#pragma once

#include <vector>

#include "cli/doctor/findings.h"

namespace fdl {

// Collective over the world that the environment tells of. Rank 0 returns the findings, the others none; `code` is what
// the process shall end with where no world came about.
std::vector<Finding> check_pairs(int& code);

}  // namespace fdl
