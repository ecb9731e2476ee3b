// Rounds: schedules for who posts messages in groups: each round is one group, and then the work of the rank itself.
//
// A group is over when all of its messages have met theirs, and no message of it waits for another one of it; the next
// group begins after that. So it is where streams of devices exchange messages: nothing can be reordered behind a
// group. A message's round is therefore a number that both its ends know: the longest chain of messages that leads to
// it. By that number, all groups of one round can meet as soon as those of the rounds before are over, on all ranks.
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

// One rank's. Steps are those of its schedule.
struct Rounds {
  std::vector<Round> rounds;  // with something in them
  std::vector<int32_t>
      slots;  // by step: the slot of a recv_reduce, as large as the largest that it is used for; else -1
  int32_t slot_count = 0;
};

// Of all ranks' schedules, which verify has let pass. Rank r's is [r].
Result<std::vector<Rounds>> lower_to_rounds(const std::vector<Schedule>& schedules, bool in_place = false);

// Runs the rounds of all ranks on symbols, with groups as above, and compares with what the collective promises.
// Refuses: groups that wait for each other in a circle (named), messages of one group that touch the same memory, a
// slot that is taken, reading what was never written, and whatever verify refuses of a result.
Status verify_rounds(const std::vector<Schedule>& schedules, const std::vector<Rounds>& rounds, bool in_place = false);

}  // namespace fdl
