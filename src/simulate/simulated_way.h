// SimulatedWay is one way to run a collective on a cluster: an algorithm of the catalog over all ranks, or, as the
// library does on hosts that share memory, one collective inside each host and one between hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "algorithms/catalog.h"
#include "simulate/cluster.h"
#include "simulate/rank_program.h"

namespace fdl {

struct SimulatedWay {
  std::string name;
  Collective collective = Collective::allreduce;
  // The algorithm declares that its ranks rotate (Algorithm::rotates); `rotates`: and all its chunks have one size.
  bool would_rotate = false;
  bool rotates = false;
  std::function<int64_t(int rank)> steps;  // about how many the rank's program has
  std::function<PlacedProgram(int rank)> place;
};

// `bytes` is as in `farandole bench`: of the vector, or of all parts where each rank has one. A multiple of 4. The
// arguments must outlive the way.
SimulatedWay flat_way(const Algorithm& algorithm, const Cluster& cluster, int64_t bytes, int64_t slice_bytes);

// An allreduce as HierarchicalCollectives composes it, with `between` as the algorithm between hosts. Shared memory
// inside the host is represented by the direct algorithms over the local links: each rank reads from every other one.
SimulatedWay hierarchical_way(const Algorithm& between, const Cluster& cluster, int64_t bytes, int64_t slice_bytes);
// The size of the vector for which the algorithm between hosts is chosen: the share of one rank of one segment.
int64_t bytes_between_hosts(const Cluster& cluster, int64_t bytes);

}  // namespace fdl
