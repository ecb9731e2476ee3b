// Measured choice interpolates times between measured sizes. The preference changes where two of these lines cross.
#include "algorithms/choice/measured_choice.h"

#include <algorithm>

#include "algorithms/choice/choose.h"

namespace fdl {
namespace {

// A schedule must take less than this fraction of the whole collective's time. Smaller differences are noise, and the
// whole collective folds in rank order at no extra cost.
constexpr double kClearlyQuicker = 0.93;
// Each interval between two measured sizes is compared at this many points.
constexpr int64_t kParts = 8;

bool is_clearly_quicker(const TuningTable::Sizes& sizes, Collective collective, int ranks, int64_t bytes, Need need) {
  const auto whole_us = measured_us(sizes, kWhole, bytes);
  if (!whole_us) return false;
  const MeasuredBest best = best_measured(sizes, collective, ranks, bytes, need);
  return best.algorithm != nullptr && best.us < *whole_us * kClearlyQuicker;
}

std::vector<int64_t> sizes_to_compare(const TuningTable::Sizes& sizes) {
  std::vector<int64_t> all{0};
  for (const auto& [bytes, ways] : sizes) {
    const int64_t before = all.back();
    for (int64_t part = 1; part <= kParts; ++part) all.push_back(before + (bytes - before) * part / kParts);
  }
  return all;
}

}  // namespace

const TuningTable::Sizes* measured_sizes(Collective collective, const GroupShape& shape) {
  if (shape.table == nullptr || shape.hosts * shape.ranks_per_host != shape.ranks) return nullptr;
  return shape.table->sizes_of({.collective = collective,
                                .transport = shape.transport,
                                .hosts = shape.hosts,
                                .ranks_per_host = shape.ranks_per_host});
}

MeasuredBest best_measured(const TuningTable::Sizes& sizes, Collective collective, int ranks, int64_t bytes,
                           Need need) {
  MeasuredBest found;
  for (const Algorithm& row : catalog()) {
    if (row.collective != collective || !obstacle(row, ranks, need).empty()) continue;
    const auto us = measured_us(sizes, row.name, bytes);
    if (!us) continue;
    if (found.algorithm == nullptr || *us < found.us) {
      found = {&row, *us, found.algorithm, found.us};
    } else if (found.next == nullptr || *us < found.next_us) {
      found.next = &row;
      found.next_us = *us;
    }
  }
  return found;
}

Preference::Preference(const GroupShape& shape) {
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    const auto collective = static_cast<Collective>(kind);
    const TuningTable::Sizes* sizes = measured_sizes(collective, shape);
    if (sizes == nullptr) continue;
    for (const bool rank_order : {false, true}) {
      for (const bool uneven : {false, true}) {
        const Need need{.rank_order = rank_order, .uneven = uneven};
        Changes& changes = changes_[index_of(collective, need)];
        bool schedule = false;
        for (const int64_t bytes : sizes_to_compare(*sizes)) {
          if (is_clearly_quicker(*sizes, collective, shape.ranks, bytes, need) == schedule) continue;
          changes.push_back(bytes);
          schedule = !schedule;
        }
        has_changes_[static_cast<std::size_t>(kind)] |= !changes.empty();
      }
    }
  }
}

bool Preference::is_schedule(Collective collective, int64_t bytes, Need need) const {
  const Changes& changes = changes_[index_of(collective, need)];
  return (std::ranges::upper_bound(changes, bytes) - changes.begin()) % 2 == 1;
}

}  // namespace fdl
