// Pairwise exchange: in round i each rank sends to the i-th rank after it and receives from the i-th before it.
//
//   4 ranks: each column is a rank, the number is the rank that it sends to
//     round 1   1 2 3 0
//     round 2   2 3 0 1
//     round 3   3 0 1 2      every chunk travels once, directly to its destination; any sizes
//
// It cannot run in place: each rank could accept a chunk only after it has sent the one in its place, and all ranks
// would wait for each other in a circle.
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
// IJHPCA 19 (2005).
#include "algorithms/algorithms.h"
#include "schedule/builder.h"

namespace fdl {

Schedule pairwise_alltoall(const ScheduleRequest& request) {
  const int size = request.size;
  Builder step("pairwise", Collective::alltoall, request.rank, size, size);
  for (int i = 1; i < size; ++i) {
    const int to = (request.rank + i) % size;
    const int from = (request.rank - i + size) % size;
    step.send(to, input(to)).recv(from, output(from));
  }
  return step.copy(output(request.rank), input(request.rank)).take();
}

}  // namespace fdl
