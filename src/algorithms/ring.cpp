// In a ring each rank sends to its right neighbour and receives from its left one: fewest bytes, most messages.
//
//   reduce-scatter, 4 ranks: each column is a rank, the number is the chunk it sends to its right
//     step 0   0 1 2 3
//     step 1   3 0 1 2
//     step 2   2 3 0 1      now rank r holds the whole sum of chunk r+1
//   allgather: rank r begins with that chunk and passes on what it received
//     step 3   1 2 3 0
//     step 4   0 1 2 3
//     step 5   3 0 1 2
//
// Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69
// (2009).
#include "algorithms/algorithms.h"
#include "schedule/builder.h"

namespace fdl {
namespace {

// Ranks and chunks around the ring, as seen from one rank.
struct Ring {
  int rank;
  int size;
  int at(int offset) const { return ((rank + offset) % size + size) % size; }
  int next() const { return at(1); }
  int prev() const { return at(-1); }
};

}  // namespace

// A rank sends the same chunk first that it receives last, so it never copies that chunk to output.
Schedule ring_allreduce(const ScheduleRequest& request) {
  const Ring ring{request.rank, request.size};
  Builder step("ring", Collective::allreduce, ring.rank, ring.size, ring.size);
  if (ring.size == 1) return step.copy(output(0), input(0)).take();
  for (int i = 0; i < ring.size - 1; ++i) {
    const int sent = ring.at(-i);
    const int received = ring.at(-i - 1);
    step.send(ring.next(), i == 0 ? input(sent) : output(sent));
    step.copy(output(received), input(received)).recv_reduce(ring.prev(), output(received));
  }
  for (int i = 0; i < ring.size - 1; ++i) {
    step.send(ring.next(), output(ring.at(1 - i))).recv(ring.prev(), output(ring.at(-i)));
  }
  return step.take();
}

// Rank r sends chunk r-1 first, one position before allreduce, so that the chunk it sums last is its own.
Schedule ring_reduce_scatter(const ScheduleRequest& request) {
  const Ring ring{request.rank, request.size};
  Builder step("ring", Collective::reduce_scatter, ring.rank, ring.size, ring.size);
  if (ring.size == 1) return step.copy(output(0), input(0)).take();
  ChunkRange held = input(ring.at(-1));
  for (int i = 0; i < ring.size - 1; ++i) {
    const int received = ring.at(-i - 2);
    const ChunkRange sum = received == ring.rank ? output(0) : step.new_scratch(received);
    step.send(ring.next(), held).copy(sum, input(received)).recv_reduce(ring.prev(), sum);
    held = sum;
  }
  return step.take();
}

Schedule ring_allgather(const ScheduleRequest& request) {
  const Ring ring{request.rank, request.size};
  Builder step("ring", Collective::allgather, ring.rank, ring.size, ring.size);
  step.copy(output(ring.rank), input(0));
  for (int i = 0; i < ring.size - 1; ++i) {
    step.send(ring.next(), i == 0 ? input(0) : output(ring.at(-i)));
    step.recv(ring.prev(), output(ring.at(-i - 1)));
  }
  return step.take();
}

}  // namespace fdl
