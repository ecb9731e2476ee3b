// This file writes and reads lists of ranks.
#include "base/rank_list.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>

#include "base/rank_range.h"

namespace fdl {

std::string rank_list_text(const std::vector<int>& ranks) {
  std::vector<RankRange> ranges;
  for (const int rank : ranks) append_rank(ranges, rank);
  std::string text;
  for (const RankRange& range : ranges) {
    const int last = range.first + range.count - 1;
    fmt::format_to(std::back_inserter(text), "{}{}", text.empty() ? "" : ",", range.first);
    if (range.count > 1) fmt::format_to(std::back_inserter(text), "{}{}", range.count == 2 ? ',' : '-', last);
  }
  return text;
}

std::optional<std::vector<int>> parse_rank_list(std::string_view text, std::size_t most) {
  std::vector<int> ranks;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    int first = -1;
    const auto [behind, error] = std::from_chars(at, end, first);
    if (error != std::errc() || first < 0) return std::nullopt;
    at = behind;
    int last = first;
    if (at != end && *at == '-') {
      const auto [next, wrong] = std::from_chars(at + 1, end, last);
      if (wrong != std::errc() || last <= first) return std::nullopt;
      at = next;
    }
    if (at != end && (*at != ',' || ++at == end)) return std::nullopt;
    if (static_cast<std::size_t>(last - first) >= most - ranks.size()) return std::nullopt;
    for (int rank = first; rank <= last; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace fdl
