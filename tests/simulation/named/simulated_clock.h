// SimulatedClock makes the monotonic clock of this program that of a simulated process while one of its threads runs,
// so that shipped classes that read the clock themselves take part in a simulation.
#pragma once

#include <cstdint>

namespace fdl::simulation {

class SimulatedClock {
 public:
  // Until this object ends, the clock shows `moment_ns`. Scopes may be nested.
  explicit SimulatedClock(int64_t moment_ns);
  ~SimulatedClock();
  SimulatedClock(const SimulatedClock&) = delete;
  SimulatedClock& operator=(const SimulatedClock&) = delete;

 private:
  const int64_t before_ns_;
};

}  // namespace fdl::simulation
