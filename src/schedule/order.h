// Order: which earlier steps of the same rank a step must follow, derived from overlap and position. The only place
// where dependencies come from; verify, simulate and the executor all call it.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace fdl {

struct Dependency {
  int32_t step;  // index of the earlier step
  bool whole;    // true: all of it must be finished; false: slice k waits for slice k only (ranges are the same)
  bool operator==(const Dependency&) const = default;
};

// For each step, the earlier steps it must follow: those that write what it reads (or the reverse), or write what it
// writes. Transitive ones are left out where an intermediate whole dependency implies them. A send's bytes are read
// until it is done. Position on a lane is no dependency: lanes keep order themselves.
std::vector<std::vector<Dependency>> order(const Schedule& schedule);

}  // namespace fdl
