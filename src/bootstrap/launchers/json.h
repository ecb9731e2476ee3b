// Json is the tree of a JSON text. Launchers put such texts into variables (TF_CONFIG, SM_HOSTS).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fdl {

struct JsonMember;

struct Json {
  enum class Kind { null, boolean, number, text, list, object };

  Kind kind = Kind::null;
  std::string text;  // of a text; of a number or boolean the source text
  std::vector<Json> items;
  std::vector<JsonMember> members;  // in source order

  bool is(Kind expected) const { return kind == expected; }
  // Returns null if this is not an object or has no such member.
  const Json* member(std::string_view name) const;
};

struct JsonMember {
  std::string name;
  Json value;
};

// Parses a text of bounded depth. The error gives the position of the fault.
Result<Json> parse_json(std::string_view text);

}  // namespace fdl
