// Symmetry computes images of ranks by addition or by exclusive or.
#include "simulate/symmetry.h"

#include <bit>

namespace fdl {

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
  const int unit = cluster.ranks_per_host * (cluster.hosts_per_rack == 0 ? 1 : cluster.hosts_per_rack);
  if (unit == ranks || ranks % unit != 0) return none;
  const auto is_power = [](int value) { return std::has_single_bit(static_cast<unsigned>(value)); };
  if (kind == Renumbering::exchange && !(is_power(ranks) && is_power(unit))) return none;
  return {kind, ranks, unit};
}

}  // namespace fdl
