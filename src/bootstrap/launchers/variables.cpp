// Variables reads values from a snapshot of the environment and quotes them in errors.
#include "bootstrap/launchers/variables.h"

#include <fmt/core.h>

#include <charconv>

#include "base/escape.h"

namespace fdl {

std::optional<int> parse_number(const std::string& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::optional<std::string> Variables::get(const char* name) const {
  auto value = name == nullptr ? std::nullopt : environment_.get(name);
  if (value && (value->empty() || value->starts_with("tcp://"))) value.reset();
  return value;
}

Result<int> Variables::number(const char* name) const {
  const auto value = get(name);
  if (!value) return -1;
  if (const auto number = parse_number(*value)) return *number;
  return Status(Code::invalid_argument, fmt::format("{} is not a whole number from 0 on", quote(name)));
}

bool Variables::is_number(const char* name) const {
  const auto value = get(name);
  return value && parse_number(*value);
}

std::string Variables::quote(const char* name) const {
  const auto value = get(name);
  return value ? fmt::format("{} = {}", name, quoted_text(*value)) : fmt::format("{} is not set", name);
}

}  // namespace fdl
