// In round k of recursive doubling, each rank exchanges all that it has with the rank whose number differs in bit k.
//
//   4 ranks      round 0   0-1 2-3
//                round 1   0-2 1-3      2 = log2(4) rounds, whole vectors: fewest messages, most bytes
//
// For sizes that are not a power of two, see fold.h. Both partners add the same two numbers, so all ranks get the same
// bits. Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
// IJHPCA 19 (2005).
#include "algorithms/algorithms.h"
#include "algorithms/fold.h"
#include "schedule/builder.h"

namespace fdl {

Schedule recursive_doubling_allreduce(const ScheduleRequest& request) {
  const Fold fold(request.rank, request.size);
  Builder step("recursive_doubling", Collective::allreduce, request.rank, request.size, 1);
  if (fold.extra()) return step.send(fold.partner(), input(0)).recv(fold.partner(), output(0)).take();
  // The first send reads input, so that the first sum into output does not wait for that send.
  bool untouched = !fold.paired() && fold.core_size > 1;
  if (!untouched) step.copy(output(0), input(0));
  if (fold.paired()) step.recv_reduce(fold.partner(), output(0));
  for (int bit = 1; bit < fold.core_size; bit *= 2) {
    const int peer = fold.rank_of(fold.core_rank() ^ bit);
    step.send(peer, untouched ? input(0) : output(0));
    if (untouched) step.copy(output(0), input(0));
    step.recv_reduce(peer, output(0));
    untouched = false;
  }
  if (fold.paired()) step.send(fold.partner(), output(0));
  return step.take();
}

Schedule recursive_doubling_allgather(const ScheduleRequest& request) {
  Builder step("recursive_doubling", Collective::allgather, request.rank, request.size, request.size);
  step.pipelining(Pipelining::rounds).copy(output(request.rank), input(0));
  for (int bit = 1; bit < request.size; bit *= 2) {
    const int peer = request.rank ^ bit;
    step.send(peer, output(request.rank & ~(bit - 1), bit)).recv(peer, output(peer & ~(bit - 1), bit));
  }
  return step.take();
}

}  // namespace fdl
