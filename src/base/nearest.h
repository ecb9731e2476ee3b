// nearest() finds the known name that a misspelt one stands for, for texts such as "do you mean ...?".
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fdl {

// The number of characters that must be inserted, removed, replaced, or exchanged with their neighbour (optimal string
// alignment distance).
inline std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last;
  std::vector<std::size_t> last(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::vector<std::size_t> row(b.size() + 1, i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = std::move(last);
    last = std::move(row);
  }
  return last[b.size()];
}

// The first of the closest candidates, if at most two changes lead to it: more would suggest unrelated names.
inline std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLimit = 2;
  std::optional<std::string> best;
  std::size_t least = kLimit + 1;
  for (const std::string& candidate : candidates) {
    // Each change alters the length by at most one.
    if (std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size()) >= least) continue;
    const std::size_t changes = distance(word, candidate);
    if (changes >= least) continue;
    least = changes;
    best = candidate;
  }
  return best;
}

}  // namespace fdl
