// Measures how long it takes to write and order one rank's schedule, and to verify and simulate all ranks' schedules.
#include <benchmark/benchmark.h>

#include "algorithms/catalog.h"
#include "schedule/order.h"
#include "schedule/proof/simulate.h"
#include "schedule/proof/verify.h"

namespace {

using fdl::Algorithm;
using fdl::Collective;

// Two ranks on each host, so that two_level has two levels.
// Pure functions: no transport, no data. What is measured here happens once per (collective, size, group) in a job.
fdl::Schedule write(const Algorithm& algorithm, int rank, int size) {
  return algorithm.write({.collective = algorithm.collective, .rank = rank, .size = size, .ranks_per_host = 2});
}

std::vector<fdl::Schedule> write_all(const Algorithm& algorithm, int size) {
  std::vector<fdl::Schedule> schedules;
  for (int rank = 0; rank < size; ++rank) schedules.push_back(write(algorithm, rank, size));
  return schedules;
}

// order() derives which steps must wait for which others.
void build_and_order(benchmark::State& state, const Algorithm& algorithm) {
  const int size = static_cast<int>(state.range(0));
  std::size_t steps = 0;
  for (auto _ : state) {
    // A rank in the middle: in trees it has both a parent and children.
    const fdl::Schedule schedule = write(algorithm, size / 2, size);
    benchmark::DoNotOptimize(fdl::order(schedule));
    steps = schedule.steps.size();
  }
  state.counters["steps"] = static_cast<double>(steps);
}

// Tests and debug builds verify each schedule; its cost limits how many group sizes a test can cover.
void verify_all(benchmark::State& state, const Algorithm& algorithm) {
  const auto schedules = write_all(algorithm, static_cast<int>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(fdl::verify(schedules));
}

void simulate_64MiB(benchmark::State& state, const Algorithm& algorithm) {
  const auto schedules = write_all(algorithm, static_cast<int>(state.range(0)));
  double seconds = 0;
  for (auto _ : state) seconds = fdl::simulate(schedules, 64 << 20, {}).seconds;
  state.counters["simulated_ms"] = seconds * 1e3;
}

}  // namespace

int main(int argc, char** argv) {
  for (const Algorithm& algorithm : fdl::catalog()) {
    // The other collectives are built from the same parts.
    if (algorithm.collective != Collective::allreduce) continue;
    const std::string name(algorithm.name);
    benchmark::RegisterBenchmark(("build_and_order/" + name).c_str(), build_and_order, algorithm)->Arg(8)->Arg(64);
    benchmark::RegisterBenchmark(("verify/" + name).c_str(), verify_all, algorithm)->Arg(8)->Arg(64);
    benchmark::RegisterBenchmark(("simulate/" + name).c_str(), simulate_64MiB, algorithm)->Arg(8);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
