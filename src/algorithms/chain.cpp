// The chain forwards the vector from rank to rank. Slices stream through, so a long vector costs about one transfer.
//
//   4 ranks, root 0, slices a b c:   0 -abc-> 1 -abc-> 2 -abc-> 3      time: slices + p - 2 transfers of one slice
//
// Source: the pipelined linear broadcast, as in E. Chan et al., "Collective communication: theory, practice, and
// experience", CCPE 19 (2007).
#include "algorithms/algorithms.h"
#include "schedule/builder.h"

namespace fdl {

Schedule chain_broadcast(const ScheduleRequest& request) {
  const int size = request.size;
  const int position = (request.rank - request.root + size) % size;
  Builder step("chain", Collective::broadcast, request.rank, size, 1, request.root);
  if (position > 0) step.recv((request.rank + size - 1) % size, output(0));
  if (position < size - 1) step.send((request.rank + 1) % size, position == 0 ? input(0) : output(0));
  if (position == 0) step.copy(output(0), input(0));
  return step.take();
}

}  // namespace fdl
