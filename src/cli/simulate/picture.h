// picture_of() draws simulated times as an SVG picture: both axes logarithmic, one line for each way, the bound dotted.
#pragma once

#include <string>
#include <vector>

#include "cli/simulate/simulated_ways.h"

namespace fdl {

// Time over bytes, or over ranks if `over_ranks`. A way that was refused at a point has a gap there. `bound` is the
// name of the dotted line.
std::string picture_of(const std::vector<SimulatedPoint>& points, const std::string& title, bool over_ranks,
                       const std::string& bound = "lower bound");

}  // namespace fdl
