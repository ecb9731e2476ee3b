// Halving and doubling is a butterfly whose messages halve while it reduces and double while it gathers.
//
//   4 ranks, 4 chunks: what rank 0 sends, and to which rank
//     reduce-scatter   round 0   chunks 2-3 to rank 1      each round halves the chunks that a rank still reduces
//                      round 1   chunk 1 to rank 2         now rank 0 holds the whole sum of chunk 0
//     allgather        round 2   chunk 0 to rank 2
//                      round 3   chunks 0-1 to rank 1      as few bytes as a ring, in 2 log2(p) messages
//
// An allreduce begins with near ranks, so that most bytes stay in a host or a rack: between hosts of l ranks, l ranks
// exchange 1/l of the vector each. In a reduce-scatter, whose chunks belong to ranks, the far ranks come first.
//
// For sizes that are not a power of two, see fold.h.
// Source: R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur et al. 2005.
#include "algorithms/algorithms.h"
#include "algorithms/fold.h"
#include "schedule/builder.h"

namespace fdl {

Schedule halving_doubling_allreduce(const ScheduleRequest& request) {
  const Fold fold(request.rank, request.size);
  const int core = fold.core_size;
  Builder step("halving_doubling", Collective::allreduce, request.rank, request.size, core);
  step.pipelining(Pipelining::rounds);
  if (fold.extra()) return step.send(fold.partner(), input(0, core)).recv(fold.partner(), output(0, core)).take();

  // A rank outside the pairs sends its first half directly from input and copies only the other half to output.
  bool untouched = !fold.paired() && core > 1;
  if (!untouched) step.copy(output(0, core), input(0, core));
  if (fold.paired()) step.recv_reduce(fold.partner(), output(0, core));
  const int self = fold.core_rank();
  int held = 0;  // the first of the chunks that this rank still reduces
  for (int distance = 1, half = core / 2; distance < core; distance *= 2, half /= 2) {
    const int peer = fold.rank_of(self ^ distance);
    const int sent = (self & distance) != 0 ? held : held + half;
    held = (self & distance) != 0 ? held + half : held;
    step.send(peer, untouched ? input(sent, half) : output(sent, half));
    if (untouched) step.copy(output(held, half), input(held, half));
    step.recv_reduce(peer, output(held, half));
    untouched = false;
  }
  for (int distance = core / 2, count = 1; distance >= 1; distance /= 2, count *= 2) {
    const int peer = fold.rank_of(self ^ distance);
    step.send(peer, output(held, count)).recv(peer, output(held ^ count, count));
    held &= ~count;
  }
  if (fold.paired()) step.send(fold.partner(), output(0, core));
  return step.take();
}

// Consecutive core ranks represent consecutive ranks, so a run of core ranks owns a run of chunks.
Schedule halving_reduce_scatter(const ScheduleRequest& request) {
  const Fold fold(request.rank, request.size);
  const int size = request.size;
  Builder step("halving", Collective::reduce_scatter, request.rank, size, size);
  step.pipelining(Pipelining::rounds);
  if (size == 1) return step.copy(output(0), input(0)).take();
  if (fold.extra()) return step.send(fold.partner(), input(0, size)).recv(fold.partner(), output(0)).take();

  for (int chunk = 0; chunk < size; ++chunk) step.new_scratch(chunk);
  const auto run = [&](Space space, int first_core, int cores) {
    const int first = fold.first_served(first_core);
    return ChunkRange{space, first, fold.first_served(first_core + cores) - first};
  };
  bool untouched = !fold.paired();
  if (fold.paired()) step.copy(scratch(0, size), input(0, size)).recv_reduce(fold.partner(), scratch(0, size));
  const int self = fold.core_rank();
  for (int bit = fold.core_size / 2; bit >= 1; bit /= 2) {
    const int peer = fold.rank_of(self ^ bit);
    const int kept = self & ~(bit - 1);
    step.send(peer, run(untouched ? Space::input : Space::scratch, kept ^ bit, bit));
    if (untouched) step.copy(run(Space::scratch, kept, bit), run(Space::input, kept, bit));
    step.recv_reduce(peer, run(Space::scratch, kept, bit));
    untouched = false;
  }
  if (fold.paired()) step.send(fold.partner(), scratch(fold.partner()));
  return step.copy(output(0), scratch(request.rank)).take();
}

}  // namespace fdl
