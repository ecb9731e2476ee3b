// These helpers build environments for tests of launchers and collect the warnings while they are read.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace fdl::test {

using Vars = std::map<std::string, std::string>;

// Merges two environments; values of the second take precedence.
inline Vars operator+(Vars a, const Vars& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

// Collects the warnings that are logged during its lifetime.
class Warnings {
 public:
  Warnings() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      if (level == LogLevel::warning) lines_.emplace_back(line);
    });
  }
  ~Warnings() { set_log_sink({}); }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

}  // namespace fdl::test
