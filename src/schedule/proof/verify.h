// Verify: proves by symbolic execution that the schedules of all ranks together compute what the collective promises.
//
// Each chunk carries the ordered list of (rank, chunk) contributions folded into it. The program of each rank is
// deterministic and its lanes are FIFO (a Kahn network), so one maximal run with rendezvous sends stands for all
// interleavings. Steps run as soon as `order` lets them, not line by line; a send is done when its receive has taken
// it; a receive takes when its target is free, a recv_reduce at once, into the one staging slot that each lane has.
//
// Sizes are symbolic too: chunks of different numbers have different sizes, so what is proved holds for uneven chunks.
// Only an alltoall that uses scratch is taken to have chunks of one size (see Schedule::scratch_sizes).
#pragma once

#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace fdl {

struct VerifyReport {
  int64_t steps = 0;
  int64_t messages = 0;
  int32_t rounds = 0;  // length of the longest chain of messages
  // Whether each rank folds every element in rank order, left to right, as the deterministic mode promises. True where
  // the collective folds nothing.
  bool folds_in_rank_order = false;
  // Whether all ranks that get an element get the same bits, even where rounding depends on the order of folding.
  bool same_bits_everywhere = false;
};

// `schedules[r]` is rank r's. Refuses: a deadlock (named: which rank waits for whom at which step), an unmatched send
// or receive, sizes that differ, a chunk out of range, a write to input, reading what was never written, a contribution
// that is missing, doubled or of another chunk, and, when `in_place`, anything that breaks under aliasing.
Result<VerifyReport> verify(const std::vector<Schedule>& schedules, bool in_place = false);

}  // namespace fdl
