// Readiness: how far a rank is with an order that all have locked, as one number that others may read at any moment.
#pragma once

#include <cstdint>

namespace fdl {

// A rank that publishes `count` has all tensors of that many positions, and thereby promises to run each of them that
// all ranks have promised. Once frozen, it promises nothing more: its count is final for this epoch.
struct Readiness {
  uint32_t epoch = 0;  // which locked order; 0: none yet
  uint64_t count = 0;
  bool frozen = false;

  bool operator==(const Readiness&) const = default;
};

inline constexpr int kReadinessCountBits = 39;
inline constexpr uint64_t kMaxReadinessCount = (uint64_t{1} << kReadinessCountBits) - 1;
// Numbers of epochs begin again after this many; nobody is ever more than one epoch behind.
inline constexpr uint32_t kReadinessEpochs = uint32_t{1} << 24;
// The top bit: whoever sleeps wants to know of it, whatever it waits for.
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
