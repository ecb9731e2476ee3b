// Pair is an index and a count that belong together; most launchers set both.
#pragma once

#include "base/status.h"
#include "bootstrap/launchers/variables.h"

namespace fdl {

struct Pair {
  int index = -1;
  int count = -1;
};

// Reads a pair: both variables or neither, with the index below the count. With `alone` the count may be absent.
Result<Pair> read_pair(const Variables& variables, const char* index, const char* count, bool alone = false);

}  // namespace fdl
