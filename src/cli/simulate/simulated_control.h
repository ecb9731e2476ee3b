// The forms --start and --lose of `farandole simulate`: how long a world needs until all ranks are in it, and until all
// know of a loss.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/simulate/simulated_ways.h"
#include "simulate/control/simulate_control.h"

namespace fdl {

// "rank:7@3s", "host:2@500ms", "coordinator@3s"; with ",silent" no connection ends.
Result<SimulatedVictim> parse_victim(const std::string& text);
// "150us,8us,1.5GB,4.5GB": a handshake, a message, and the bytes that are authenticated and written in a second; the
// last one may be missing.
Status parse_control_costs(const std::string& text, ControlCosts& costs);

// Both print one row, or one line of JSON, for each cluster. `points` gets the times over ranks for a picture.
Status print_simulated_starts(const std::vector<Cluster>& clusters, const ControlCosts& costs, bool json,
                              std::vector<SimulatedPoint>& points);
Status print_simulated_losses(const std::vector<Cluster>& clusters, const ControlCosts& costs,
                              const std::string& victim, bool json, std::vector<SimulatedPoint>& points);

}  // namespace fdl
