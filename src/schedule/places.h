// Places numbers the chunks of a schedule, so that chunks that share memory in place have the same number.
// size_index() maps each chunk to the chunk of the vector that gives its size.
#pragma once

#include <cstdint>

#include "schedule/schedule.h"

namespace fdl {

// Every chunk of a rank has a place, a number below total(). Two chunks share memory if and only if they have the same
// place. Consecutive chunks of one space have consecutive places.
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
  int32_t count_[3] = {0, 0, 0};  // by space
  int32_t base_[3] = {0, 0, 0};   // by space: the place of its chunk 0
  int32_t total_ = 0;
};

// Returns the index of the chunk of the vector that has the same size as this chunk. In collectives with one chunk for
// each rank the index is a rank. In alltoall, where each pair may have its own size, it is the peer's rank.
int32_t size_index(const Schedule& schedule, Space space, int32_t chunk);

}  // namespace fdl
