// ReadinessFlags: one number of each rank of a group that all its ranks may read at any moment, and a bell for those
// who sleep until it changes.
#pragma once

#include <cstdint>

#include "contract/waitable.h"

namespace fdl {

// One thread drives it. What a rank published last can be read until all of the group have ended, also when the rank
// has left.
class ReadinessFlags : public Waitable {
 public:
  // A word with this bit wakes every rank that sleeps; others only those that watch the rank which published it.
  static constexpr uint64_t kUrgent = uint64_t{1} << 63;

  // My word, from now on; 0 at first. What I wrote before can be read by whoever sees it.
  virtual void publish(uint64_t word) = 0;
  virtual uint64_t word_of(int rank) const = 0;
  // Whose words wake me when I sleep: one bit a rank.
  virtual void watch(uint64_t ranks) = 0;
};

}  // namespace fdl
