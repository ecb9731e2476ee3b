// JsonLine builds one JSON object on one line, with keys in the order in which they were added.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "base/escape.h"

namespace fdl {

// Keys are not checked for duplicates. Texts may be any bytes (see json_text()); the result never contains a line end.
class JsonLine {
 public:
  JsonLine& text(std::string_view key, std::string_view value) { return raw(key, quoted(value)); }
  JsonLine& number(std::string_view key, long long value) { return raw(key, std::to_string(value)); }
  // JSON has no infinity and no NaN.
  JsonLine& number(std::string_view key, double value) {
    return raw(key, std::isfinite(value) ? fmt::format("{:.6g}", value) : "null");
  }
  JsonLine& flag(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  JsonLine& list(std::string_view key, const std::vector<std::string>& texts) {
    std::string body;
    for (const std::string& text : texts) body += (body.empty() ? "" : ", ") + quoted(text);
    return raw(key, "[" + body + "]");
  }
  JsonLine& list(std::string_view key, const std::vector<int>& numbers) {
    return raw(key, fmt::format("[{}]", fmt::join(numbers, ", ")));
  }
  JsonLine& list(std::string_view key, const std::vector<JsonLine>& objects) {
    std::string body;
    for (const JsonLine& object : objects) body += (body.empty() ? "" : ", ") + object.str();
    return raw(key, "[" + body + "]");
  }
  JsonLine& object(std::string_view key, const JsonLine& object) { return raw(key, object.str()); }
  std::string str() const { return "{" + body_ + "}"; }

 private:
  static std::string quoted(std::string_view value) { return fmt::format("\"{}\"", json_text(value)); }
  JsonLine& raw(std::string_view key, const std::string& value) {
    body_ += (body_.empty() ? "" : ", ") + quoted(key) + ": " + value;
    return *this;
  }
  std::string body_;
};

}  // namespace fdl
