// Consequence: whether a rank that failed was the cause, or ended because others were lost or never came.
#pragma once

#include <deque>
#include <string>

namespace fdl {

struct Consequence {
  int exit_code = 0;  // documented: what a scheduler may act upon; 0: the rank's own end is the cause
  std::string words;  // "its peers were lost"
};

// From the last lines that the rank wrote: the library's own sentences stand there where its error was not caught.
Consequence consequence_of(const std::deque<std::string>& last_lines);

}  // namespace fdl
