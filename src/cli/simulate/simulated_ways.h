// simulated_point() simulates every requested way to run one collective of one size on one cluster.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "simulate/simulate_collective.h"

namespace fdl {

// What `farandole simulate` is to simulate: ways as "all", "auto" or a list of names of algorithms.
struct SimulateQuery {
  Collective collective = Collective::allreduce;
  std::string algorithms = "all";
  int64_t slice_bytes = 256 * 1024;
  SimulationLimits limits;
  std::function<void(const Cluster&, const std::string& way)> on_begin = [](const Cluster&, const std::string&) {};
};

struct SimulatedRow {
  std::string name;
  bool is_chosen = false;                  // what the library runs on this cluster without a tuning table
  std::optional<double> predicted_s;       // by the model that chooses; absent where it has no formula
  std::optional<SimulatedCollective> run;  // absent if it was refused
  std::string refusal;
};

struct SimulatedPoint {
  Cluster cluster;
  int64_t bytes = 0;
  double bound_s = 0;
  std::vector<SimulatedRow> rows;
};

// Fails if an algorithm does not exist; one that cannot run here, or is too large, is a row with a refusal.
Result<SimulatedPoint> simulated_point(const SimulateQuery& query, const Cluster& cluster, int64_t bytes);

}  // namespace fdl
