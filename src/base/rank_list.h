// Lists of ranks as texts: "0-7,12,3,4" is ranks 0 to 7, then 12, 3 and 4.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fdl {

// Keeps the order of the list. Three consecutive ranks or more are written as a range.
std::string rank_list_text(const std::vector<int>& ranks);

// The same for people, in increasing order: "rank 3", "ranks 0-7, 12 and 14", "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 20
// more". Empty without ranks.
std::string describe_ranks(const std::vector<int>& ranks);
// "ranks 96-111 on host-c and host-d", "ranks 0-95 on a, b, c, d, e, f, g, h and 4 more hosts". `hosts` has the host of
// each rank, or nothing.
std::string describe_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts);

// The ranks of a rank_list_text(). Empty if the text is none, or has more than `most` ranks.
std::optional<std::vector<int>> parse_rank_list(std::string_view text, std::size_t most);

}  // namespace fdl
