// ShmProgress: how far the other ranks are with their steps, as far as this rank knows.
//
// Counters only grow, so what was seen once holds: another rank's line is read only where that does not suffice.
#pragma once

#include <array>

#include "transports/shm/shm_layout.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {

class ShmProgress {
 public:
  explicit ShmProgress(const ShmLayout& layout) : layout_(layout) {}

  // Who of `whom` has not done so many steps of a stage.
  RankMask unpublished(RankMask whom, uint64_t least) { return behind(0, &Counters::published, whom, least); }
  RankMask untaken(RankMask whom, uint64_t least) { return behind(1, &Counters::taken, whom, least); }
  RankMask unfetched(RankMask whom, uint64_t least) { return behind(2, &Counters::fetched, whom, least); }
  RankMask uncollected(RankMask whom, uint64_t least) { return behind(3, &Counters::collected, whom, least); }

 private:
  using Counters = ShmLayout::Counters;
  static constexpr std::size_t kStages = 4;

  RankMask behind(std::size_t stage, std::atomic<uint64_t> Counters::*counter, RankMask whom, uint64_t least) {
    RankMask behind = 0;
    for (const int other : each_of(whom)) {
      uint64_t& have = known_[static_cast<std::size_t>(other)][stage];
      if (have >= least) continue;
      have = (layout_.counters(other).*counter).load(std::memory_order_acquire);
      if (have < least) behind |= bit_of(other);
    }
    return behind;
  }

  const ShmLayout& layout_;
  std::array<std::array<uint64_t, kStages>, kMaxShmRanks> known_{};
};

}  // namespace fdl
