// Places: how many chunks each space of a schedule has, which are the same memory in place, and whose size each has.
#pragma once

#include <cstdint>

#include "schedule/schedule.h"

namespace fdl {

// Every chunk of a rank has a place: a number below `total`. Two chunks share memory exactly when they share a place,
// and neighbouring chunks of one space have neighbouring places.
class Places {
 public:
  explicit Places(const Schedule& schedule, bool in_place = false);

  int32_t count(Space space) const { return count_[static_cast<int>(space)]; }
  int32_t first(ChunkRange range) const { return base_[static_cast<int>(range.space)] + range.first; }
  int32_t total() const { return total_; }
  bool contains(ChunkRange range) const {
    return range.first >= 0 && range.count > 0 && range.count <= count(range.space) - range.first;
  }

 private:
  int32_t count_[3] = {0, 0, 0};
  int32_t base_[3] = {0, 0, 0};
  int32_t total_ = 0;
};

// The chunk of the vector (of the p chunks, where there are p) that this chunk is as large as. In alltoall, where sizes
// may differ from pair to pair, it is the peer's rank.
int32_t size_index(const Schedule& schedule, Space space, int32_t chunk);

}  // namespace fdl
