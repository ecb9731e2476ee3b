// Variables reads launcher variables as numbers and text. Its errors name the variables and quote their values.
#pragma once

#include <optional>
#include <string>

#include "base/config.h"
#include "base/status.h"

namespace fdl {

// Parses a whole number from 0 on.
std::optional<int> parse_number(const std::string& text);

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  // Empty values count as absent. So do those that begin with "tcp://": Kubernetes puts <SERVICE>_PORT=tcp://... of
  // every service into every pod, and a service may be called "master".
  std::optional<std::string> get(const char* name) const;
  bool has(const char* name) const { return get(name).has_value(); }
  std::string text(const char* name) const { return get(name).value_or(""); }

  // Returns -1 if it is absent; an error if it is not a whole number from 0 on.
  Result<int> number(const char* name) const;
  bool is_number(const char* name) const;

  // "RANK = '3'", or "RANK is not set"
  std::string quote(const char* name) const;
  const std::map<std::string, std::string>& all() const { return environment_.all(); }

 private:
  const Environment& environment_;
};

}  // namespace fdl
