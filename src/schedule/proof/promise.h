// check_outputs() compares the outputs of a symbolic run with what the collective promises.
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "schedule/proof/symbolic_run.h"
#include "schedule/proof/verify.h"

namespace fdl {

// Returns the value of a chunk of a rank's output after the run; nullptr if it was never written.
using OutputOf = std::function<const SymbolicValue*(int32_t rank, int32_t chunk)>;

// Compares all outputs with the promise and fills in the fields of `report` that describe the order of folding.
Status check_outputs(const std::vector<Schedule>& schedules, const OutputOf& output_of, bool in_place,
                     VerifyReport* report);

}  // namespace fdl
