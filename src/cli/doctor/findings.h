// A Finding is one result of `farandole doctor`: what was examined, how severe it is, and the remedy.
#pragma once

#include <string>
#include <vector>

#include "cli/json_line.h"

namespace fdl {

struct Finding {
  enum class Severity { good, note, warning, bad };
  Severity severity = Severity::good;
  std::string what;    // "interface eth0", "memlock"
  std::string text;    // what was found, with its numbers
  std::string remedy;  // empty where no action is needed
};

inline const char* name_of(Finding::Severity severity) {
  constexpr const char* kNames[] = {"good", "note", "warning", "bad"};
  return kNames[static_cast<int>(severity)];
}

// The keys are public: scripts read them.
inline JsonLine to_json(const Finding& finding) {
  JsonLine line;
  line.text("what", finding.what).text("verdict", name_of(finding.severity));
  line.text("text", finding.text).text("remedy", finding.remedy);
  return line;
}

}  // namespace fdl
