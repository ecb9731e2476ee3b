// GroupShape describes a group of ranks to the choice of algorithms, and to the algorithms.
#pragma once

#include <string>
#include <vector>

#include "algorithms/catalog.h"
#include "algorithms/choice/rank_order.h"
#include "algorithms/choice/tuning_table.h"

namespace fdl {

// The levels of a group and the cost of its messages, as bootstrap/topology found them.
struct GroupShape {
  int ranks = 1;
  int hosts = 1;
  int ranks_per_host = 1;              // 0 if hosts have different numbers of ranks
  double alpha_s = 5e-6;               // per message between the slowest pair
  double latency_s = 0;                // until a message's first byte arrives; messages that are sent at once share it
  double beta_s = 1.0 / 2e9;           // per byte
  std::string transport = {};          // that connects the ranks: "tcp"
  const TuningTable* table = nullptr;  // measured times; null if there are none; outlives the shape
  RankOrder order = {};                // in which the ranks of a host, and of each wider group, are neighbours
  std::vector<int> levels = {};        // see RankLevels; empty: ranks_per_host and hosts are all that is known
  // By level: the latency between two ranks whose innermost common group is of that level. Empty: latency_s for all.
  std::vector<double> level_latency_s = {};
  int parts = 1;  // groups that run their allreduces at once over the same links: the local ranks of all hosts
};

// Writes the schedule of one rank of a group of this shape, by the row's algorithm.
Schedule write_schedule(const Algorithm& algorithm, const GroupShape& shape, int rank, int root = 0);

// Whether each host has a block of consecutive ranks. The blocks may be in any order. ranks_per_host is not 0.
bool has_hosts_in_blocks(const GroupShape& shape);

// The shape of a part of a group that has one rank of each host, at the same place in its host. Its ranks are the hosts
// in the order of the shape.
GroupShape shape_between_hosts(const GroupShape& shape);
// The same where the hosts are numbered by their ranks: without the levels of hosts, unless that is the same order.
GroupShape shape_between_blocks(const GroupShape& shape);
// The shape of the ranks of one host.
GroupShape shape_inside_host(const GroupShape& shape);

}  // namespace fdl
