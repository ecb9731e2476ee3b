// Own terms: what this rank must have as all others of its job, so that they choose and understand the same.
#pragma once

#include <vector>

#include "algorithms/tuning_table.h"
#include "base/config.h"
#include "world/terms.h"

namespace fdl {

std::vector<Term> own_terms(const Config& config, const TuningTable& table);

}  // namespace fdl
