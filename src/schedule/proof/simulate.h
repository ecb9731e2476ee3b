// simulate() computes how long the schedules of all ranks take under the alpha-beta-gamma cost model, with slices and
// lanes.
//
// Each rank has one output port, one input port and one core. A slice occupies the sender's output port and the
// receiver's input port for alpha + beta * bytes; both directions run at once (full duplex). Among lanes that wait for
// a port, the longest-waiting one goes first; lanes are FIFO. Copies and reductions occupy the core in order of
// arrival. A recv_reduce accepts at once while its lane has staging space. Contention in the network and the difference
// between near and far ranks are not modelled.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace fdl {

// Costs in seconds: alpha per message (one slice), beta per byte on the wire, gamma per reduced byte, copy per copied
// byte.
struct CostModel {
  double alpha_s = 5e-6;
  double beta_s = 1.0 / 2e9;
  double gamma_s = 1.0 / 10e9;
  double copy_s = 1.0 / 10e9;
  int64_t slice_bytes = 256 * 1024;
  int staging_slices = 0;  // limit of slices that a lane has accepted and not yet reduced; 0: no limit
};

struct SimulatedRun {
  double seconds = 0;                // until the last rank is done; infinite if a rank never finishes
  std::vector<double> rank_seconds;  // by rank
  int64_t bytes_sent = 0;            // by all ranks
};

// `bytes` is the size of the whole vector (allreduce, reduce, broadcast) or of all chunks of the side that has p of
// them. Chunk sizes differ by at most one byte. The schedules must have passed verify(). A run that gets stuck needs
// more staging: verify() proves progress for whole steps, and this simulation shows it for slices.
SimulatedRun simulate(const std::vector<Schedule>& schedules, int64_t bytes, const CostModel& model,
                      bool in_place = false);

}  // namespace fdl
