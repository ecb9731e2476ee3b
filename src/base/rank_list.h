// Lists of ranks as texts: "0-7,12,3,4" is ranks 0 to 7, then 12, 3 and 4.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fdl {

// Keeps the order of the list. Three consecutive ranks or more are written as a range.
std::string rank_list_text(const std::vector<int>& ranks);

// The ranks of such a text. Empty if the text is none, or has more than `most` ranks.
std::optional<std::vector<int>> parse_rank_list(std::string_view text, std::size_t most);

}  // namespace fdl
