// Json: what launchers put into variables (TF_CONFIG, SM_HOSTS), read into a small tree.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fdl {

struct Json {
  enum class Kind { null, boolean, number, text, list, object };

  Kind kind = Kind::null;
  std::string text;  // of text; of a number or boolean as it was written
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;  // in the order in which they stand

  bool is(Kind wanted) const { return kind == wanted; }
  // Nothing where this is no object, or has no such member.
  const Json* member(std::string_view name) const;
};

// Depth and size are bounded; what does not parse is told with its position.
Result<Json> parse_json(std::string_view text);

}  // namespace fdl
