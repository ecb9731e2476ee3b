// Bruck's algorithm takes log2(p) rounds for any number of ranks. It works on rotated chunks: a rank's own chunk comes
// first.
//
//   4 ranks, allgather: what rank 0 holds, in scratch       0 . . .
//     round 0   first chunk to rank 3, one from rank 1      0 1 . .
//     round 1   two chunks to rank 2, two from rank 2       0 1 2 3      rank r holds r r+1 r+2 r+3, rotated back
//                                                                        at the end
//
// A reduce-scatter is the same backwards, and an allreduce is both:
//
//   5 ranks, reduce-scatter: which of its partial sums rank 0 sends, by owner
//     round 0   4 to rank 4               and adds what rank 1 sends for rank 0
//     round 1   2 3 to rank 2             each round ends with the sums of more ranks for fewer owners, for any number
//     round 2   1 to rank 1               of ranks without folding
//
//   4 ranks, alltoall: chunk i of rank r, destined for rank r+i, travels by the bits of i
//     round 0   chunks 1 and 3 move on by one rank
//     round 1   chunks 2 and 3 move on by two      few messages but more bytes: for short chunks of one size
//
// Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, "Efficient algorithms for all-to-all communications
// in multiport message-passing systems", IEEE TPDS 8 (1997). The sums: J. L. Traff, "Optimal, Non-pipelined
// Reduce-scatter and Allreduce Algorithms", arXiv 2410.14234 (2024).
#include <algorithm>
#include <bit>
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

// Scratch chunk i is the one of the i-th rank after this one.
Builder in_rotated_scratch(const ScheduleRequest& request) {
  Builder step("bruck", request.collective, request.rank, request.size, request.size);
  step.pipelining(Pipelining::rounds);
  for (int i = 0; i < request.size; ++i) step.new_scratch((request.rank + i) % request.size);
  return step;
}

void copy_in(Builder& step, int rank, int size) {
  step.copy(scratch(0, size - rank), input(rank, size - rank));
  if (rank > 0) step.copy(scratch(size - rank, rank), input(0, rank));
}

void copy_out(Builder& step, int rank, int size) {
  step.copy(output(rank, size - rank), scratch(0, size - rank));
  if (rank > 0) step.copy(output(0, rank), scratch(size - rank, rank));
}

// Before, each rank has its own chunk; afterwards, all.
void gather_doubling(Builder& step, int rank, int size) {
  for (int held = 1; held < size; held *= 2) {
    const int count = std::min(held, size - held);
    step.send((rank - held + size) % size, scratch(0, count)).recv((rank + held) % size, scratch(held, count));
  }
}

// Before, each rank has its part of all chunks; afterwards, the sum of its own chunk.
void reduce_halving(Builder& step, int rank, int size) {
  for (int kept = static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) / 2; kept >= 1; kept /= 2) {
    const int count = std::min(kept, size - kept);
    step.send((rank + kept) % size, scratch(kept, count));
    step.recv_reduce((rank - kept + size) % size, scratch(0, count));
  }
}

}  // namespace

Schedule bruck_allgather(const ScheduleRequest& request) {
  Builder step = in_rotated_scratch(request);
  step.copy(scratch(0), input(0));
  gather_doubling(step, request.rank, request.size);
  copy_out(step, request.rank, request.size);
  return step.take();
}

Schedule bruck_reduce_scatter(const ScheduleRequest& request) {
  Builder step = in_rotated_scratch(request);
  copy_in(step, request.rank, request.size);
  reduce_halving(step, request.rank, request.size);
  return step.copy(output(0), scratch(0)).take();
}

Schedule bruck_allreduce(const ScheduleRequest& request) {
  Builder step = in_rotated_scratch(request);
  copy_in(step, request.rank, request.size);
  reduce_halving(step, request.rank, request.size);
  gather_doubling(step, request.rank, request.size);
  copy_out(step, request.rank, request.size);
  return step.take();
}

Schedule bruck_alltoall(const ScheduleRequest& request) {
  const int rank = request.rank;
  const int size = request.size;
  Builder step("bruck", Collective::alltoall, rank, size, size);
  step.pipelining(Pipelining::rounds);
  // Scratch holds the chunks, then the packed outgoing message, then the incoming one.
  for (int i = 0; i < 3 * size; ++i) step.new_scratch(0);
  copy_in(step, rank, size);
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
