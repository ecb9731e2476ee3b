// Simulate: how long the schedules of all ranks take under the alpha-beta-gamma cost model, slices and lanes included.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace fdl {

// alpha per message, beta per byte on the wire, gamma per reduced byte, copy per copied byte: seconds.
struct CostModel {
  double alpha_s = 5e-6;
  double beta_s = 1.0 / 2e9;
  double gamma_s = 1.0 / 10e9;
  double copy_s = 1.0 / 10e9;
  int64_t slice_bytes = 256 * 1024;
};

struct SimulatedRun {
  double seconds = 0;                // until the last rank is done
  std::vector<double> rank_seconds;  // by rank
  int64_t bytes_sent = 0;            // by all ranks
};

// `bytes`: of the whole vector (allreduce, reduce, broadcast) or of all chunks of the side that has p of them.
SimulatedRun simulate(const std::vector<Schedule>& schedules, int64_t bytes, const CostModel& model);

}  // namespace fdl
