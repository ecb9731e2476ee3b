// The last of all names follows "and"; if some are left out, their number does.
#include "base/name_list.h"

#include <fmt/format.h>

#include <algorithm>

namespace fdl {

std::string first_of_names(const std::vector<std::string>& names, std::size_t count, std::string_view of_what) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : i + 1 == count ? " and " : ", ";
    text += names[i];
  }
  return count <= names.size() ? text : fmt::format("{} and {} more{}", text, count - names.size(), of_what);
}

std::string name_list(const std::vector<std::string>& names, std::size_t most, std::string_view of_what) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min(names.size(), most));
  return first_of_names({names.begin(), names.begin() + shown}, names.size(), of_what);
}

}  // namespace fdl
