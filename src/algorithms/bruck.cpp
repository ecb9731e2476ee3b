// Bruck's algorithm takes log2(p) rounds for any number of ranks. It works on rotated chunks: a rank's own chunk comes
// first.
//
//   4 ranks, allgather: what rank 0 holds, in scratch       0 . . .
//     round 0   first chunk to rank 3, one from rank 1      0 1 . .
//     round 1   two chunks to rank 2, two from rank 2       0 1 2 3      rank r holds r r+1 r+2 r+3, rotated back
//                                                                        at the end
//
//   4 ranks, alltoall: chunk i of rank r, destined for rank r+i, travels by the bits of i
//     round 0   chunks 1 and 3 move on by one rank
//     round 1   chunks 2 and 3 move on by two      few messages but more bytes: for short chunks of one size
//
// Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, "Efficient algorithms for all-to-all communications
// in multiport message-passing systems", IEEE TPDS 8 (1997).
#include <algorithm>
#include <vector>

#include "algorithms/algorithms.h"
#include "schedule/builder.h"

namespace fdl {
namespace {

// Returns the runs of consecutive chunks whose number has the bit set.
std::vector<ChunkRange> runs_with(int bit, int size) {
  std::vector<ChunkRange> runs;
  for (int first = bit; first < size; first += 2 * bit) runs.push_back(scratch(first, std::min(bit, size - first)));
  return runs;
}

}  // namespace

Schedule bruck_allgather(const ScheduleRequest& request) {
  const int rank = request.rank;
  const int size = request.size;
  Builder step("bruck", Collective::allgather, rank, size, size);
  step.pipelining(Pipelining::rounds);
  for (int i = 0; i < size; ++i) step.new_scratch((rank + i) % size);
  step.copy(scratch(0), input(0));
  for (int held = 1; held < size; held *= 2) {
    const int count = std::min(held, size - held);
    step.send((rank - held + size) % size, scratch(0, count)).recv((rank + held) % size, scratch(held, count));
  }
  step.copy(output(rank, size - rank), scratch(0, size - rank));
  if (rank > 0) step.copy(output(0, rank), scratch(size - rank, rank));
  return step.take();
}

Schedule bruck_alltoall(const ScheduleRequest& request) {
  const int rank = request.rank;
  const int size = request.size;
  Builder step("bruck", Collective::alltoall, rank, size, size);
  step.pipelining(Pipelining::rounds);
  // Scratch holds the chunks, then the packed outgoing message, then the incoming one.
  for (int i = 0; i < 3 * size; ++i) step.new_scratch(0);
  step.copy(scratch(0, size - rank), input(rank, size - rank));
  if (rank > 0) step.copy(scratch(size - rank, rank), input(0, rank));
  for (int bit = 1; bit < size; bit *= 2) {
    const std::vector<ChunkRange> runs = runs_with(bit, size);
    int count = 0;
    for (const ChunkRange& run : runs) {
      step.copy(scratch(size + count, run.count), run);
      count += run.count;
    }
    step.send((rank + bit) % size, scratch(size, count)).recv((rank - bit + size) % size, scratch(2 * size, count));
    count = 0;
    for (const ChunkRange& run : runs) {
      step.copy(run, scratch(2 * size + count, run.count));
      count += run.count;
    }
  }
  for (int i = 0; i < size; ++i) step.copy(output((rank - i + size) % size), scratch(i));
  return step.take();
}

}  // namespace fdl
