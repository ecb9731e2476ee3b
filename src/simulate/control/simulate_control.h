// simulate_start() and simulate_loss() report what ControlPlane finds for one cluster.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "simulate/cluster.h"
#include "simulate/control/control_plane.h"

namespace fdl {

// Times are seconds since the first call, of the last rank unless another one is named.
struct SimulatedStart {
  double connected_s = 0;   // the coordinator has its hello
  double table_s = 0;       // it has the table of all ranks
  double hosts_s = 0;       // it knows which ranks share a host
  double memory_s = 0;      // it is connected with the ranks of its host
  double seconds = 0;       // it is in the world
  double first_rank_s = 0;  // the first rank is in the world
  int connections = 0;      // of the coordinator; each rank has one
  int64_t received = 0;     // messages of the coordinator
  int64_t sent = 0;
  int64_t sent_bytes = 0;
  int64_t most_messages = 0;   // of a rank, the first one excepted
  int64_t repeated_calls = 0;  // that found the queue of the listener full
};

Result<SimulatedStart> simulate_start(const Cluster& cluster, const ControlCosts& costs);

// What is lost, and when: so long after all ranks are in the world.
struct SimulatedVictim {
  enum class Kind { rank, host, coordinator };
  Kind kind = Kind::rank;
  int number = 0;  // of the rank or the host
  double at_s = 0;
  bool is_silent = false;  // stopped or cut off: no connection ends
};

// Times are seconds since the loss.
struct SimulatedLoss {
  int victims = 0;       // ranks
  double first_s = 0;    // the first of the other ranks knows all of them
  double last_s = 0;     // the last one does
  double warned_s = -1;  // the last rank has the last warning of a silence; -1: there was none
  int64_t received = 0;  // messages of the coordinator since the loss
  int64_t sent = 0;
  int64_t most_messages = 0;  // of a rank since the loss
};

Result<SimulatedLoss> simulate_loss(const Cluster& cluster, const ControlCosts& costs, const SimulatedVictim& victim);

}  // namespace fdl
