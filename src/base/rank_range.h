// RankRange is a run of consecutive ranks. Long lists of ranks travel and are kept as ranges.
#pragma once

#include <vector>

namespace fdl {

struct RankRange {
  int first = 0;
  int count = 0;
  bool operator==(const RankRange&) const = default;
};

// Appends a rank: to the last range if it follows that.
inline void append_rank(std::vector<RankRange>& ranges, int rank) {
  if (!ranges.empty() && ranges.back().first + ranges.back().count == rank) {
    ++ranges.back().count;
  } else {
    ranges.push_back({rank, 1});
  }
}

}  // namespace fdl
