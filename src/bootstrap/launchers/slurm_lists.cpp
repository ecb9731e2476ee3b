// In Slurm's compressed lists a comma separates entries only outside of brackets. Numbers keep their leading zeros.
#include "bootstrap/launchers/slurm_lists.h"

#include <fmt/core.h>

#include <charconv>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/escape.h"

namespace fdl {
namespace {

constexpr int64_t kMostEntries = 1 << 20;  // a longer range is taken to be a mistake
constexpr int64_t kMostTasks = 1'000'000;  // of a node

std::optional<int64_t> parse_whole(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t start = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') inside = true;
    if (i < text.size() && text[i] == ']') inside = false;
    if (i == text.size() || (text[i] == ',' && !inside)) {
      parts.push_back(text.substr(start, i - start));
      start = i + 1;
    }
  }
  return parts;
}

// Returns the first number of "07-09,11" as it is written, or nothing if one of the ranges is malformed.
std::optional<std::string_view> first_number(std::string_view ranges) {
  const std::vector<std::string_view> parts = split(ranges);
  for (std::string_view range : parts) {
    const auto dash = range.find('-');
    const auto low = parse_whole(range.substr(0, dash));
    const auto high = dash == std::string_view::npos ? low : parse_whole(range.substr(dash + 1));
    if (!low || !high || *high < *low || *high - *low >= kMostEntries) return std::nullopt;
  }
  return parts.front().substr(0, parts.front().find('-'));
}

// Returns the first host of a name such as "rack[1-2]node[01-03]", or nothing if the name is malformed.
std::optional<std::string> first_of_name(std::string_view name) {
  std::string first;
  while (true) {
    const auto open = name.find('[');
    const std::string_view plain = name.substr(0, open);
    if (plain.find(']') != std::string_view::npos) return std::nullopt;
    first += plain;
    if (open == std::string_view::npos) break;
    const auto close = name.find(']', open);
    if (close == std::string_view::npos) return std::nullopt;
    const auto number = first_number(name.substr(open + 1, close - open - 1));
    if (!number) return std::nullopt;
    first += *number;
    name.remove_prefix(close + 1);
  }
  if (first.empty()) return std::nullopt;
  return first;
}

struct Counts {
  int64_t tasks = 0;
  int64_t nodes = 0;
};

// Parses "2(x3)": three nodes of two tasks each.
std::optional<Counts> parse_counts(std::string_view part) {
  const auto open = part.find("(x");
  const auto tasks = parse_whole(part.substr(0, open));
  if (!tasks || *tasks > kMostTasks) return std::nullopt;
  if (open == std::string_view::npos) return Counts{*tasks, 1};
  if (!part.ends_with(')')) return std::nullopt;
  const auto nodes = parse_whole(part.substr(open + 2, part.size() - open - 3));
  if (!nodes || *nodes < 1 || *nodes > kMostEntries) return std::nullopt;
  return Counts{*tasks, *nodes};
}

}  // namespace

Result<std::string> first_slurm_host(std::string_view list) {
  std::optional<std::string> first;
  for (std::string_view name : split(list)) {
    auto host = first_of_name(name);
    if (!host) {
      return Status(Code::invalid_argument,
                    fmt::format("{} is not a list of hosts such as a[1-3,7],b", quoted_text(list)));
    }
    if (!first) first = std::move(host);
  }
  return *std::move(first);
}

Result<std::optional<int>> slurm_tasks_of_node(std::string_view list, int node) {
  std::optional<int> tasks;
  int64_t before = 0;
  for (std::string_view part : split(list)) {
    const auto counts = parse_counts(part);
    if (!counts) {
      return Status(Code::invalid_argument,
                    fmt::format("{} is not a list of counts such as 2(x3),1", quoted_text(list)));
    }
    if (node >= before && node < before + counts->nodes) tasks = static_cast<int>(counts->tasks);
    before += counts->nodes;
  }
  return tasks;
}

}  // namespace fdl
