// Consequence determines whether a failed rank was the cause, or ended because other ranks were lost or did not arrive.
#pragma once

#include <deque>
#include <string>

namespace fdl {

struct Consequence {
  int exit_code = 0;  // of ExitCode (cli/subcommands.h); 0: the rank's own end is the cause
  std::string text;   // "another rank was lost"
};

// The rank that shut down before the rank that wrote these lines was done; -1 if none did.
int rank_that_left(const std::deque<std::string>& last_lines);

// Examines the last lines that the rank wrote. They contain the library's error text if the program did not catch it.
Consequence consequence_of(const std::deque<std::string>& last_lines);

}  // namespace fdl
