// Symmetry computes images of ranks by addition or by exclusive or.
#include "simulate/symmetry.h"

#include <bit>

namespace fdl {
namespace {

// The hosts of the outermost groups, of which a renumbering keeps the hosts together. The groups of inner levels divide
// these, so they stay together as well. A level with one group has nothing to keep.
int hosts_of_unit(const Cluster& cluster) {
  int hosts = 1;
  for (const SwitchLevel& level : cluster.switches) {
    if (cluster.groups(level) > 1) hosts = level.hosts;
  }
  return hosts;
}

}  // namespace

int Symmetry::stand_for(int rank) const { return kind == Renumbering::none ? rank : rank % unit; }

int Symmetry::seen_from(int rank, int other) const {
  const int image = stand_for(rank);
  switch (kind) {
    case Renumbering::none:
      return other;
    case Renumbering::rotation:
      return (other - (rank - image) + ranks) % ranks;
    case Renumbering::exchange:
      return other ^ (rank ^ image);
  }
  return other;
}

Symmetry symmetry_of(const Cluster& cluster, Renumbering kind) {
  const int ranks = cluster.ranks();
  const Symmetry none{Renumbering::none, ranks, ranks};
  if (kind == Renumbering::none || !cluster.is_regular()) return none;
  const int unit = cluster.ranks_per_host * hosts_of_unit(cluster);
  if (unit == ranks || ranks % unit != 0) return none;
  const auto is_power = [](int value) { return std::has_single_bit(static_cast<unsigned>(value)); };
  if (kind == Renumbering::exchange && !(is_power(ranks) && is_power(unit))) return none;
  return {kind, ranks, unit};
}

}  // namespace fdl
