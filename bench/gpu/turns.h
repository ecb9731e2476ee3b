// Measures several ways of doing the same in turns, so that a disturbance of the machine affects all of them.
#pragma once

#include <functional>
#include <vector>

#include "base/clock.h"
#include "bench/times.h"

namespace gpu_bench {

using bench::Times;

// One way, called with a number to rotate buffers by.
using Way = std::function<void(int)>;

// The times of one call among `calls`, for each way. `finish` waits for the device; it is timed if `to_the_end`.
inline std::vector<Times> measure(const std::vector<Way>& ways, int rounds, int calls, bool to_the_end,
                                  const std::function<void()>& finish) {
  // Indexed by way, then by round.
  std::vector<std::vector<double>> all(ways.size());
  for (int round = -1; round < rounds; ++round) {  // the first round is not counted
    // The device is idle when each way begins: finish() has waited for the one before.
    for (std::size_t way = 0; way < ways.size(); ++way) {
      finish();
      const int64_t begin = fdl::now_ns();
      for (int call = 0; call < calls; ++call) ways[way](call);
      if (to_the_end) finish();
      if (round >= 0) all[way].push_back(static_cast<double>(fdl::now_ns() - begin) / 1000 / calls);
    }
  }
  finish();
  std::vector<Times> times;
  for (auto& each : all) times.push_back(Times::of(std::move(each)));
  return times;
}

}  // namespace gpu_bench
