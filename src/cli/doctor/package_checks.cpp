// The variable contains findings of four fields, as farandole/doctor/packages.py writes them.
#include "cli/doctor/package_checks.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace fdl {
namespace {

constexpr char kFieldEnd = '\x1f';
constexpr char kFindingEnd = '\x1e';

// Takes the text up to `end` off the front; all of it if there is no `end`.
std::string_view take_until(std::string_view& text, char end) {
  const std::size_t length = text.find(end);
  const std::string_view taken = text.substr(0, length);
  text.remove_prefix(length == std::string_view::npos ? text.size() : length + 1);
  return taken;
}

using Severity = Finding::Severity;

std::optional<Severity> severity_of(std::string_view name) {
  for (const Severity one : {Severity::good, Severity::note, Severity::warning, Severity::bad}) {
    if (name == name_of(one)) return one;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Finding> check_packages(const Environment& environment) {
  std::vector<Finding> findings;
  const auto given = environment.get(std::string(kFindingsVariable));
  std::string_view text = given ? std::string_view(*given) : std::string_view();
  while (!text.empty()) {
    std::string_view one = take_until(text, kFindingEnd);
    std::array<std::string, 4> fields;
    for (std::string& field : fields) field = take_until(one, kFieldEnd);
    if (const auto severity = severity_of(fields[0])) findings.push_back({*severity, fields[1], fields[2], fields[3]});
  }
  return findings;
}

}  // namespace fdl
