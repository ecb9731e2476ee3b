// Rounds lowers schedules for executors that post messages in groups. Each round is one group of messages, followed by
// the rank's local work.
//
// A group is complete when all of its messages have matched their counterparts; the next group begins after that. No
// message waits for another one of its group. Streams of devices exchange messages in this way: nothing can be
// reordered across a group.
//
// Both ends of a message must therefore place it in the same round. Its round is the length of the longest chain of
// messages that leads to it. With that number, all groups of a round can match once the earlier rounds are complete on
// all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace fdl {

struct Round {
  std::vector<int32_t> messages;  // steps, posted in this order; a recv_reduce is received into its slot
  std::vector<int32_t> work;      // steps, in this order: copies, reduces, and recv_reduces that fold their slot
};

// The rounds of one rank. Steps are indices into its schedule. Empty rounds are omitted.
struct Rounds {
  std::vector<Round> rounds;
  // By step: the slot that a recv_reduce receives into; -1 for other steps. A slot is as large as the largest message
  // that uses it.
  std::vector<int32_t> slots;
  int32_t slot_count = 0;
};

// Lowers the schedules of all ranks; element r of the result belongs to rank r. The schedules must have passed
// verify().
Result<std::vector<Rounds>> lower_to_rounds(const std::vector<Schedule>& schedules, bool in_place = false);

// Runs the rounds of all ranks on symbols, with groups as above, and compares the outputs with what the collective
// promises. The error names the first of these faults: groups that wait for each other in a circle, messages of one
// group that touch the same memory, a receive into a slot in use, a read of unwritten memory, or a wrong output.
Status verify_rounds(const std::vector<Schedule>& schedules, const std::vector<Rounds>& rounds, bool in_place = false);

}  // namespace fdl
