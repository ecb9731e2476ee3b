// Fold lets butterfly algorithms run on any number of ranks. The first ranks form pairs, and one rank of each pair
// works for both.
//
//   6 ranks: 4 core ranks   pairs (0 1) (2 3), alone 4 5   core 0 1 2 3 are ranks 1 3 4 5
//
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
// IJHPCA 19 (2005).
#pragma once

#include <bit>

namespace fdl {

struct Fold {
  Fold(int rank_, int size) : rank(rank_) {
    core_size = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
    pairs = size - core_size;
  }

  bool paired() const { return rank < 2 * pairs; }
  bool extra() const { return paired() && rank % 2 == 0; }  // sends its part to rank + 1 and waits for the result
  int partner() const { return rank % 2 == 0 ? rank + 1 : rank - 1; }
  int core_rank() const { return paired() ? rank / 2 : rank - pairs; }
  int rank_of(int core) const { return core < pairs ? 2 * core + 1 : core + pairs; }
  // The first of the ranks that core rank `core` represents. Consecutive core ranks represent consecutive ranks.
  int first_served(int core) const { return core < pairs ? 2 * core : core + pairs; }

  int rank;
  int core_size;  // a power of two
  int pairs;
};

}  // namespace fdl
