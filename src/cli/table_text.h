// The texts of which the tables of `farandole where` and `farandole inspect` consist.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fdl {

// Names are the program's own, and a terminal must not interpret them.
inline std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return text;
}

// "rank 2", "ranks 1, 2, 3 and 4 more"; empty without ranks. At most `most` ranks are named.
inline std::string list_ranks(const std::vector<int>& ranks, std::size_t most) {
  if (ranks.empty()) return "";
  const std::size_t shown = std::min(ranks.size(), most);
  std::string text = fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "",
                                 fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return ranks.size() > shown ? fmt::format("{} and {} more", text, ranks.size() - shown) : text;
}

}  // namespace fdl
