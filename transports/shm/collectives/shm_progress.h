// ShmProgress caches how many steps of each stage the other ranks have done.
//
// Counters only grow, so a cached value stays a lower bound. Another rank's counter is read only if that bound is too
// low.
#pragma once

#include <array>

#include "transports/shm/shm_layout.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {

class ShmProgress {
 public:
  explicit ShmProgress(const ShmLayout& layout) : layout_(layout) {}

  // Those of `ranks` that have done fewer than `least` steps of a stage.
  RankMask unpublished(RankMask ranks, uint64_t least) { return behind(0, &Counters::published, ranks, least); }
  RankMask untaken(RankMask ranks, uint64_t least) { return behind(1, &Counters::taken, ranks, least); }
  RankMask unfetched(RankMask ranks, uint64_t least) { return behind(2, &Counters::fetched, ranks, least); }
  RankMask uncollected(RankMask ranks, uint64_t least) { return behind(3, &Counters::collected, ranks, least); }

 private:
  using Counters = ShmLayout::Counters;
  static constexpr std::size_t kStages = 4;

  RankMask behind(std::size_t stage, std::atomic<uint64_t> Counters::*counter, RankMask ranks, uint64_t least) {
    RankMask behind = 0;
    for (const int other : each_of(ranks)) {
      uint64_t& have = known_[static_cast<std::size_t>(other)][stage];
      if (have >= least) continue;
      have = (layout_.counters(other).*counter).load(std::memory_order_acquire);
      if (have < least) behind |= bit_of(other);
    }
    return behind;
  }

  const ShmLayout& layout_;
  std::array<std::array<uint64_t, kStages>, kMaxShmRanks> known_{};  // by rank and stage
};

}  // namespace fdl
