// This header has the ids of groups, and the exchange by which a group is split.
//
// exchange_colors() tells the ranks of a group which of them have chosen the same color, in order to split it. It costs
// a rank one message to the coordinator and one answer: the first rank collects the choices, and answers each color
// with the list of its ranks.
//
//   rank 0                                        every other rank r
//   fetch    r         of all others              publish  r         its color and key
//   publish  color C   its ranks, for each C      fetch    color C   its own color
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/membership.h"

namespace fdl {

// "{0-7,16}". Ids of groups are in the keys of the coordinator's store, whose length is limited, and in errors: a long
// list of ranks is cut, and its digest tells it from others.
std::string id_of_ranks(const std::vector<int>& world_ranks);

// What a rank passes to split(). All negative colors are one: its ranks join no group.
struct ColorAndKey {
  int color = 0;
  int key = 0;
};

// Returns the ranks in the group that have chosen the same color as `rank`, ordered by (key, rank in the group); none
// for a negative color. Every rank waits for the choices of all. TIMEOUT: some rank has made none by the deadline.
Result<std::vector<int>> exchange_colors(const std::vector<Member>& members, int rank, ColorAndKey mine,
                                         Exchange& exchange, Deadline deadline);

}  // namespace fdl
