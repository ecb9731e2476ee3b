// The dissemination barrier signals, in round k, from each rank to the rank 2^k after it.
//
//   4 ranks      round 0   0 to 1, 1 to 2, 2 to 3, 3 to 0      each has a signal from 2 ranks, itself included
//                round 1   0 to 2, 1 to 3, 2 to 0, 3 to 1      each has a signal from all 4
//
// The messages are empty. They use recv_reduce because it accepts a message while the send of its round is in flight.
// Source: D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization", IJPP 17 (1988).
#include "algorithms/algorithms.h"
#include "schedule/builder.h"

namespace fdl {

Schedule dissemination_barrier(const ScheduleRequest& request) {
  const int size = request.size;
  Builder step("dissemination", Collective::barrier, request.rank, size, 1);
  step.pipelining(Pipelining::rounds).copy(output(0), input(0));
  for (int distance = 1; distance < size; distance *= 2) {
    step.send((request.rank + distance) % size, output(0));
    step.recv_reduce((request.rank - distance + size) % size, output(0));
  }
  return step.take();
}

}  // namespace fdl
