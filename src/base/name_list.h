// name_list() writes names for a message, so that thousands of them still fit into one line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fdl {

// "a", "a and b", "a, b and c", and with `most` = 3 and 8 names "a, b, c and 5 more". `of_what` follows "more":
// " hosts". Empty without names.
std::string name_list(const std::vector<std::string>& names, std::size_t most, std::string_view of_what = {});

// The same, where `names` are only the first of `count` names.
std::string first_of_names(const std::vector<std::string>& names, std::size_t count, std::string_view of_what = {});

}  // namespace fdl
