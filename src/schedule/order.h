// order() derives which earlier steps of the same rank a step must follow, from overlapping chunks and the position in
// the list. It is the only source of dependencies; verify, simulate and the executor all call it.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace fdl {

struct Dependency {
  int32_t step;  // index of the earlier step
  bool whole;    // true: all of it must be finished; false: slice k waits for slice k only, as the ranges are the same
  bool operator==(const Dependency&) const = default;
};

// Returns, for each step, the earlier steps that it must follow: those that write what it reads, read what it writes or
// write what it writes. A send reads its bytes until it is done. The position on a lane adds no dependency, because
// lanes are FIFO.
//
// `whole` is false if both steps touch exactly the same range, so that their slices line up. A reduce step touches each
// of its source chunks as a separate range: slice k of its target is the fold of slice k of every source. Dependencies
// that follow from a chain over the same chunk are omitted.
//
// `in_place` means that input and output share memory as Places describes. It changes the result: in place, a recv into
// output may have to wait for a send from input.
std::vector<std::vector<Dependency>> order(const Schedule& schedule, bool in_place = false);

}  // namespace fdl
