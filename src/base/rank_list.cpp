// This file writes and reads lists of ranks.
#include "base/rank_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/name_list.h"
#include "base/rank_range.h"

namespace fdl {
namespace {

// A text of thousands of ranks must still fit into one line of the log.
constexpr std::size_t kMostShown = 8;

std::vector<RankRange> ranges_of(const std::vector<int>& ranks) {
  std::vector<RankRange> ranges;
  for (const int rank : ranks) append_rank(ranges, rank);
  return ranges;
}

}  // namespace

std::string describe_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "";
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  std::vector<std::string> parts;
  std::size_t shown = 0;
  const auto show = [&](const RankRange& range) {
    if (parts.size() == kMostShown) return;
    const int last = range.first + range.count - 1;
    parts.push_back(range.count == 1 ? fmt::format("{}", last) : fmt::format("{}-{}", range.first, last));
    shown += static_cast<std::size_t>(range.count);
  };
  for (const RankRange& range : ranges_of(sorted)) {
    if (range.count == 2) {
      show({range.first, 1});
      show({range.first + 1, 1});
    } else {
      show(range);
    }
  }
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "",
                     first_of_names(parts, parts.size() + ranks.size() - shown));
}

std::string describe_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::vector<std::string> names = hosts;
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.empty()) return describe_ranks(ranks);
  return fmt::format("{} on {}", describe_ranks(ranks), name_list(names, kMostShown, " hosts"));
}

std::string rank_list_text(const std::vector<int>& ranks) {
  std::string text;
  for (const RankRange& range : ranges_of(ranks)) {
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
