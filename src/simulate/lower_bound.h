// lower_bound_s() computes a time that no algorithm can undercut on a cluster.
#pragma once

#include "schedule/schedule.h"
#include "simulate/cluster.h"

namespace fdl {

// The larger of two times. Latency: what one host has must reach all hosts (or ranks, on one host), and what one group
// of a level of switches has must reach all groups of that level. Bandwidth: the bytes that must cross the link of a
// host or of a group. The times of reductions and copies are not counted.
double lower_bound_s(Collective collective, const Cluster& cluster, int64_t bytes);

// The bytes that one link carries for each byte of the vector: bus bandwidth is bytes / time * this, as in nccl-tests.
double bus_factor(Collective collective, int ranks);

}  // namespace fdl
