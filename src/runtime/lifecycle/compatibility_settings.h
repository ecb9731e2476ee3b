// compatibility_settings() lists the values of this rank that must be alike on all ranks, because ranks choose
// algorithms and decode messages by them.
#pragma once

#include <vector>

#include "algorithms/choice/tuning_table.h"
#include "base/config.h"
#include "bootstrap/coordinator/compatibility.h"

namespace fdl {

std::vector<CompatibilitySetting> compatibility_settings(const Config& config, const TuningTable& table);

}  // namespace fdl
