// Symmetry says which ranks stand for all ranks of a group.
//
// A renumbering of the ranks that keeps hosts and the groups of all levels of switches together, and that maps each
// rank's program to the program of its image, maps a run of the cluster to a run of the cluster. The simulation breaks
// no tie by the number of a rank (see cluster_simulation.h), so both runs are the same one: a rank and its image do the
// same at the same times. It suffices to simulate one rank of each set of images. Two families of renumberings are
// used:
//
//   rotation   x -> x + k * unit (mod p)   rings, direct exchanges, dissemination
//   exchange   x -> x xor k * unit         butterflies; p and the unit are powers of two
//
// The simulated ranks are 0 to unit - 1. The unit is a host, or a group of the outermost level of switches that has
// more than one.
#pragma once

#include <cstdint>

#include "simulate/cluster.h"

namespace fdl {

enum class Renumbering : uint8_t { none, rotation, exchange };

struct Symmetry {
  Renumbering kind = Renumbering::none;
  int ranks = 1;  // of the group
  int unit = 1;   // ranks to simulate; `ranks` if there is no symmetry

  // The simulated rank that stands for `rank`.
  int stand_for(int rank) const;
  // The number that `other` has after the renumbering that maps `rank` to stand_for(rank).
  int seen_from(int rank, int other) const;
};

// The renumbering with the fewest ranks to simulate that the cluster allows; none if there is no such.
Symmetry symmetry_of(const Cluster& cluster, Renumbering kind);

}  // namespace fdl
