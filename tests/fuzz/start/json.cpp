// Fuzzes parse_json(): the tree is not deeper than the parser's limit, and its texts come from the input.
#include "bootstrap/launchers/json.h"

#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

std::size_t check(const Json& value, int depth) {
  FDL_CHECK(depth <= 17);
  std::size_t bytes = value.text.size();
  for (const Json& item : value.items) bytes += check(item, depth + 1);
  for (const JsonMember& member : value.members) bytes += member.name.size() + check(member.value, depth + 1);
  return bytes;
}

bool run(ConstBytes input) {
  const auto value = parse_json(text_of(input));
  if (!value.ok()) {
    FDL_CHECK(value.status().text().starts_with("invalid JSON at character "));
    return false;
  }
  FDL_CHECK(check(*value, 0) <= input.size());
  (void)value->member("cluster");
  return true;
}

std::vector<std::string> seeds() {
  return {
      R"({"cluster": {"worker": ["a:2222", "b:2222"], "chief": ["c:2222"]}, "task": {"type": "worker", "index": 1}})",
      R"(["algo-1", "algo-2"])", R"({"a": [true, false, null, -1.5e3, "\"\\\n\u00e9"], "b": {}})",
      "[[[[[[[[[[0]]]]]]]]]]"};
}

}  // namespace

const Target json{"json", run, seeds};

}  // namespace fdl::fuzz
