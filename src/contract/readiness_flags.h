// ReadinessFlags publishes one word of each rank of a group to all its ranks and wakes the ranks that wait for a
// change.
#pragma once

#include <cstdint>

#include "contract/waitable.h"

namespace fdl {

// One thread drives it. The last word of a rank stays readable until the whole group has ended, even if the rank has
// left.
class ReadinessFlags : public Waitable {
 public:
  // A word with this bit wakes every sleeping rank. Other words wake only ranks that watch the publisher.
  static constexpr uint64_t kUrgent = uint64_t{1} << 63;

  // Replaces this rank's word, which is 0 at first. Release order: a rank that reads the word also sees this rank's
  // earlier writes.
  virtual void publish(uint64_t word) = 0;
  virtual uint64_t word_of(int rank) const = 0;
  // Selects the ranks whose words wake this rank: one bit for each rank.
  virtual void watch(uint64_t ranks) = 0;
};

}  // namespace fdl
