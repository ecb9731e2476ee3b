// verify() proves by symbolic execution that the schedules of all ranks compute what the collective promises.
//
// Each chunk carries the ordered list of (rank, chunk) contributions folded into it. Each rank's schedule is
// deterministic and its lanes are FIFO (a Kahn network), so one maximal run with rendezvous sends covers all
// interleavings. A step runs as soon as the steps that order() returns for it are done, not line by line. A send is
// done when its receive has accepted it. A receive accepts when its target is free. A recv_reduce accepts at once, into
// the one staging slot that each lane has.
//
// Sizes are symbolic too: chunks with different numbers have different sizes, so the proof covers uneven chunks. An
// alltoall that uses scratch is the exception: its chunks have one size (see Schedule::scratch_sizes).
#pragma once

#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace fdl {

struct VerifyReport {
  int64_t steps = 0;
  int64_t messages = 0;
  int32_t rounds = 0;  // length of the longest chain of messages
  // Each rank folds every element in rank order, left to right, as the deterministic mode promises. True if the
  // collective folds nothing.
  bool folds_in_rank_order = false;
  // All ranks that receive an element receive the same bits, even if rounding depends on the order of folding.
  bool same_bits_everywhere = false;
};

// Verifies the schedules of all ranks; `schedules[r]` belongs to rank r. The error names the first fault found: an
// unmatched send or receive, sizes that differ, a chunk out of range, a write to input, a read of unwritten memory, a
// deadlock (which rank waits for which at which step), or a contribution that is missing, doubled or of another chunk.
// `in_place` runs the same checks with input and output in the same memory.
Result<VerifyReport> verify(const std::vector<Schedule>& schedules, bool in_place = false);

}  // namespace fdl
