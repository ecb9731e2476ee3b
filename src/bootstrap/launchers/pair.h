// Pair: an index and a count that belong together, as most launchers give them.
#pragma once

#include "base/status.h"
#include "bootstrap/launchers/variables.h"

namespace fdl {

struct Pair {
  int index = -1;
  int count = -1;
};

// Both or neither, index below count. `alone`: the index may come without its count.
Result<Pair> read_pair(const Variables& variables, const char* index, const char* count, bool alone = false);

}  // namespace fdl
