// This file writes and reads lists of ranks.
#include "base/rank_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

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

// "a", "a and b", "a, b and c", "a, b, c and 5 more"
std::string join(const std::vector<std::string>& parts, std::size_t more, std::string_view of_what) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size() && more == 0;
    text += i == 0 ? "" : last ? " and " : ", ";
    text += parts[i];
  }
  return more == 0 ? text : fmt::format("{} and {} more{}", text, more, of_what);
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
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", join(parts, ranks.size() - shown, ""));
}

std::string describe_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::vector<std::string> names = hosts;
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.empty()) return describe_ranks(ranks);
  const std::size_t more = names.size() > kMostShown ? names.size() - kMostShown : 0;
  names.resize(names.size() - more);
  return fmt::format("{} on {}", describe_ranks(ranks), join(names, more, " hosts"));
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
