// renumbered() turns a schedule that was written for positions in an order of the ranks into one for the ranks.
#pragma once

#include <span>

#include "schedule/schedule.h"

namespace fdl {

// rank_at[i] is the rank at position i; each rank is at one position. The schedule of position i becomes that of rank
// rank_at[i]: its peers and its root become ranks, and so do its chunks where they belong to ranks (allgather,
// reduce_scatter, alltoall, gather, scatter). There, a message or copy of several chunks becomes one of each chunk,
// because neighbours in the order are not neighbours in memory. Its peer has the same messages, because it is
// renumbered in the same way. The schedule has no reduce step with chunks that belong to ranks.
Schedule renumbered(Schedule schedule, std::span<const int> rank_at);

}  // namespace fdl
