// simulate_collective() simulates one way to run a collective on a cluster, by its symmetry where it has one.
#pragma once

#include <cstdint>

#include "simulate/cluster_simulation.h"
#include "simulate/simulated_way.h"

namespace fdl {

// What a simulation may cost. Steps take about 100 bytes each, slices a few microseconds.
struct SimulationLimits {
  int64_t most_steps = 40'000'000;
  int64_t most_slices = 20'000'000;
};

struct SimulatedCollective {
  double seconds = 0;
  double first_rank_s = 0;
  int64_t messages = 0;    // of the rank that sends most; each has as many slices as its bytes need
  int64_t sent_bytes = 0;  // by the rank that sends most
  int64_t simulated_ranks = 0;
  int64_t simulated_slices = 0;
  int64_t events = 0;
  Renumbering symmetry = Renumbering::none;
};

// Writes the programs of all ranks, or of those that stand for all. A rotation that the catalog declares
// (Algorithm::rotates) is used without writing the others; any other symmetry is used only after the program of every
// rank has been compared with its image. Fails if that costs more than the limits, with the remedy.
Result<GroupProgram> group_program(const SimulatedWay& way, const Cluster& cluster, const SimulationLimits& limits,
                                   bool by_symmetry = true);

Result<SimulatedCollective> simulate_collective(const SimulatedWay& way, const Cluster& cluster,
                                                const SimulationLimits& limits, bool by_symmetry = true);

}  // namespace fdl
