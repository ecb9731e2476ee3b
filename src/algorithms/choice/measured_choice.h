// Measured choice reads a tuning table for one group: it finds the fastest schedule and the sizes at which a schedule
// is faster than the whole collective.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "algorithms/catalog.h"
#include "algorithms/choice/tuning_table.h"

namespace fdl {

struct GroupShape;

// Returns the measurements of this collective for this group; null if there are none.
const TuningTable::Sizes* measured_sizes(Collective collective, const GroupShape& shape);

struct MeasuredBest {
  const Algorithm* algorithm = nullptr;  // null: no algorithm that can run was measured
  double us = 0;
  const Algorithm* next = nullptr;  // the second fastest; null if there is none
  double next_us = 0;
};
MeasuredBest best_measured(const TuningTable::Sizes& sizes, Collective collective, int ranks, int64_t bytes, Need need);

// Preference returns whether a schedule was measured to be faster than the whole collective. It is consulted before
// every collective, so the table is evaluated once, when a communicator is created. Without a table the check is one
// comparison.
class Preference {
 public:
  Preference() = default;
  explicit Preference(const GroupShape& shape);

  // Returns whether no size prefers a schedule; the caller then need not compute the number of bytes.
  bool is_always_whole(Collective collective) const { return !has_changes_[static_cast<std::size_t>(collective)]; }
  bool is_schedule(Collective collective, int64_t bytes, Need need) const;

 private:
  // Sizes in bytes at which the preference changes, ascending. Below the first one the whole collective is preferred.
  using Changes = std::vector<int64_t>;
  static std::size_t index_of(Collective collective, Need need) {
    return static_cast<std::size_t>(collective) * 4 + (need.rank_order ? 2 : 0) + (need.uneven ? 1 : 0);
  }

  std::array<bool, kCollectiveCount> has_changes_{};
  std::array<Changes, std::size_t{kCollectiveCount} * 4> changes_;
};

}  // namespace fdl
