// Promise: what each collective says that its outputs hold, for whoever ran schedules on symbols.
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "schedule/proof/symbolic_run.h"
#include "schedule/proof/verify.h"

namespace fdl {

// What a chunk of a rank's output holds after the run; nullptr if nothing.
using OutputOf = std::function<const SymbolicValue*(int32_t rank, int32_t chunk)>;

// Compares all outputs with the promise, and sees how they were folded.
Status check_outputs(const std::vector<Schedule>& schedules, const OutputOf& output_of, bool in_place,
                     VerifyReport* report);

}  // namespace fdl
