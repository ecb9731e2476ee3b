// Simulate: how long the schedules of all ranks take under the alpha-beta-gamma cost model, slices and lanes included.
//
// What is modelled: each rank has one port out, one port in and one core. A slice occupies the sender's port out and
// the receiver's port in for alpha + beta * bytes; both directions run at once (full duplex). Among lanes that wait for
// a port, the one that waits longest goes first; lanes are FIFO. Copies and reductions occupy the core, first come
// first served. A recv_reduce accepts at once while its lane has room in staging. Links between different pairs never
// disturb each other: contention in the network is not modelled, nor is the difference between near and far ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace fdl {

// alpha per message (one slice), beta per byte on the wire, gamma per reduced byte, copy per copied byte: seconds.
struct CostModel {
  double alpha_s = 5e-6;
  double beta_s = 1.0 / 2e9;
  double gamma_s = 1.0 / 10e9;
  double copy_s = 1.0 / 10e9;
  int64_t slice_bytes = 256 * 1024;
  int staging_slices = 0;  // that a lane may have accepted and not yet reduced; 0: any number
};

struct SimulatedRun {
  double seconds = 0;                // until the last rank is done; infinite if some rank never is
  std::vector<double> rank_seconds;  // by rank
  int64_t bytes_sent = 0;            // by all ranks
};

// `bytes`: of the whole vector (allreduce, reduce, broadcast) or of all chunks of the side that has p of them; chunks
// are as equal as they can be. The schedules must be such as verify lets pass. A run that gets stuck is one for which
// the staging is too small: what verify proves for whole steps, this shows for slices.
SimulatedRun simulate(const std::vector<Schedule>& schedules, int64_t bytes, const CostModel& model,
                      bool in_place = false);

}  // namespace fdl
