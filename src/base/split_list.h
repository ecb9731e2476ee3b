// split_list cuts a list such as "a,b,c" at its commas, or a path such as "a/b/c".
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace fdl {

// The parts between the separators, at least one; parts may be empty.
inline std::vector<std::string> split_list(std::string_view list, char separator = ',') {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(separator, begin), list.size());
    parts.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace fdl
