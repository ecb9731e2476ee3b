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
// writes. A send's bytes are read until it is done. Position on a lane is no dependency: lanes keep order themselves.
//
// `whole` is false where both steps touch exactly the same range, so that their slices line up. A reduce step touches
// each of its source chunks as a range of its own: slice k of its target is the fold of slice k of every source.
// Dependencies that others imply through a chain over the same chunk are left out.
//
// `in_place`: input and output are the same memory as Places says. The executor passes what the call was; the two
// answers differ (in place, a recv into output may have to wait for a send from input).
std::vector<std::vector<Dependency>> order(const Schedule& schedule, bool in_place = false);

}  // namespace fdl
