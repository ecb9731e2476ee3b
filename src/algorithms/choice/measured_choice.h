// Measured choice: what a tuning table says of one group: the quickest schedule, and where schedules beat the whole.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "algorithms/catalog.h"
#include "algorithms/choice/tuning_table.h"

namespace fdl {

struct GroupShape;

// What was measured for this collective of this group; null where nothing was.
const TuningTable::Sizes* measured_sizes(Collective collective, const GroupShape& shape);

struct MeasuredBest {
  const Algorithm* algorithm = nullptr;  // null: of those that can run, none was measured
  double us = 0;
  const Algorithm* next = nullptr;
  double next_us = 0;
};
MeasuredBest best_measured(const TuningTable::Sizes& sizes, Collective collective, int ranks, int64_t bytes, Need need);

// Whether a schedule was measured to be quicker than the whole collective. Asked before every collective, so what the
// table says is worked out when a communicator is made; without a table the answer is one comparison.
class Preference {
 public:
  Preference() = default;
  explicit Preference(const GroupShape& shape);

  // For no size: then nobody needs to know how many bytes there are.
  bool is_always_whole(Collective collective) const { return !knows_[static_cast<std::size_t>(collective)]; }
  bool is_schedule(Collective collective, int64_t bytes, Need need) const;

 private:
  // Bytes at which the answer changes, ascending; it begins with the whole collective.
  using Changes = std::vector<int64_t>;
  static std::size_t index_of(Collective collective, Need need) {
    return static_cast<std::size_t>(collective) * 4 + (need.rank_order ? 2 : 0) + (need.uneven ? 1 : 0);
  }

  std::array<bool, kCollectiveCount> knows_{};
  std::array<Changes, std::size_t{kCollectiveCount} * 4> changes_;
};

}  // namespace fdl
