// Readiness packs a rank's progress in a locked order into one word that other ranks may read at any moment.
#pragma once

#include <cstdint>

namespace fdl {

// A rank that publishes `count` has all tensors of that many positions. It thereby promises to run each of them that
// all ranks have promised. A frozen rank promises nothing more: its count is final for this epoch.
struct Readiness {
  uint32_t epoch = 0;  // number of the locked order; 0: none yet
  uint64_t count = 0;
  bool frozen = false;

  bool operator==(const Readiness&) const = default;
};

// A word has 39 bits of count, 24 bits of epoch and the frozen bit.
inline constexpr int kReadinessCountBits = 39;
inline constexpr uint64_t kMaxReadinessCount = (uint64_t{1} << kReadinessCountBits) - 1;
// Epoch numbers wrap around after this many. That is unambiguous, because no rank is more than one epoch behind.
inline constexpr uint32_t kReadinessEpochs = uint32_t{1} << 24;
// The top bit, so that a waiter can wake up when it is set, whatever count it waits for.
inline constexpr uint64_t kFrozenBit = uint64_t{1} << 63;

constexpr uint64_t to_word(Readiness readiness) {
  return readiness.count | (static_cast<uint64_t>(readiness.epoch % kReadinessEpochs) << kReadinessCountBits) |
         (readiness.frozen ? kFrozenBit : 0);
}

constexpr Readiness readiness_of(uint64_t word) {
  return {.epoch = static_cast<uint32_t>((word & ~kFrozenBit) >> kReadinessCountBits),
          .count = word & kMaxReadinessCount,
          .frozen = (word & kFrozenBit) != 0};
}

}  // namespace fdl
