// In Slurm's compressed lists a comma separates entries only outside of brackets. Numbers keep their leading zeros.
#include "bootstrap/launchers/slurm_lists.h"

#include <fmt/core.h>

#include <charconv>
#include <optional>

#include "base/bytes.h"

namespace fdl {
namespace {

// A longer list is taken to be a mistake, and so are longer numbers and names with more brackets.
constexpr std::size_t kMostEntries = 1 << 20;
constexpr std::size_t kMostBytes = 64_MiB;
constexpr std::size_t kMostDigits = 20;
constexpr int kMostBrackets = 8;

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

// "1-3,07" -> 1 2 3 07
bool expand_numbers(std::string_view ranges, std::vector<std::string>& numbers) {
  for (std::string_view range : split(ranges)) {
    const auto dash = range.find('-');
    const std::string_view low_text = range.substr(0, dash);
    const auto low = parse_whole(low_text);
    const auto high = dash == std::string_view::npos ? low : parse_whole(range.substr(dash + 1));
    if (!low || !high || *high < *low || low_text.size() > kMostDigits) return false;
    if (static_cast<std::size_t>(*high - *low) >= kMostEntries - numbers.size()) return false;
    for (int64_t number = *low; number <= *high; ++number) {
      numbers.push_back(fmt::format("{:0{}}", number, low_text.size()));
    }
  }
  return true;
}

bool expand_name(std::string_view name, std::vector<std::string>& hosts, int brackets = 0) {
  const auto open = name.find('[');
  if (open == std::string_view::npos) {
    if (name.empty() || name.find(']') != std::string_view::npos) return false;
    if (hosts.size() >= kMostEntries || hosts.size() >= kMostBytes / name.size()) return false;
    hosts.emplace_back(name);
    return true;
  }
  const auto close = name.find(']', open);
  if (close == std::string_view::npos || brackets == kMostBrackets) return false;
  std::vector<std::string> numbers;
  if (!expand_numbers(name.substr(open + 1, close - open - 1), numbers)) return false;
  for (const std::string& number : numbers) {
    const std::string one = std::string(name.substr(0, open)) + number + std::string(name.substr(close + 1));
    if (!expand_name(one, hosts, brackets + 1)) return false;
  }
  return true;
}

}  // namespace

Result<std::vector<std::string>> expand_hosts(std::string_view list) {
  std::vector<std::string> hosts;
  for (std::string_view name : split(list)) {
    if (!expand_name(name, hosts)) {
      return Status(Code::invalid_argument, fmt::format("'{}' is not a list of hosts such as a[1-3,7],b", list));
    }
  }
  return hosts;
}

Result<std::vector<int>> expand_counts(std::string_view list) {
  std::vector<int> counts;
  for (std::string_view part : split(list)) {
    const auto open = part.find("(x");
    int64_t repeat = 1;
    if (open != std::string_view::npos) {
      repeat = part.ends_with(')') ? parse_whole(part.substr(open + 2, part.size() - open - 3)).value_or(0) : 0;
    }
    const int64_t count = parse_whole(part.substr(0, open)).value_or(-1);
    if (count < 0 || count > 1'000'000 || repeat < 1 ||
        static_cast<std::size_t>(repeat) > kMostEntries - counts.size()) {
      return Status(Code::invalid_argument, fmt::format("'{}' is not a list of counts such as 2(x3),1", list));
    }
    counts.insert(counts.end(), static_cast<std::size_t>(repeat), static_cast<int>(count));
  }
  return counts;
}

}  // namespace fdl
