// Simulated jobs of many seeds. SIMULATION_SEEDS=1000 runs more of them, SIMULATION_SEED=7 one, and prints its story.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "tests/simulation/job.h"
#include "tests/simulation/named/simulated_clock.h"

namespace fdl::simulation {
namespace {

uint64_t number_in(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Totals {
  int64_t jobs = 0;
  double hours = 0;
  uint64_t events = 0;
  uint64_t most_events = 0;
  uint64_t longest = 0;  // the seed with the most events
  std::map<std::string, int64_t> counts;
};

// What ranks log of their failures and of their tuning is no news here.
const bool is_quiet = [] {
  set_log_level(LogLevel::off);
  return true;
}();

// Returns whether the job keeps what must hold. If not, its story is printed.
bool run_job(uint64_t seed, Totals& totals, bool prints, Job::Program program = Job::Program::ordered) {
  Job job(seed, program);
  if (prints) job.simulation().keep_story();
  job.run();
  Simulation& simulation = job.simulation();
  ++totals.jobs;
  totals.hours += static_cast<double>(simulation.now()) / 3.6e12;
  totals.events += simulation.steps();
  if (simulation.steps() > totals.most_events) {
    totals.most_events = simulation.steps();
    totals.longest = seed;
  }
  for (const auto& [what, count] : simulation.counts()) totals.counts[what] += count;
  if (prints) std::printf("seed %llu\n%s", static_cast<unsigned long long>(seed), simulation.story().c_str());
  return simulation.violations().empty();
}

TEST(SimulatedClock, IsTheClockOfShippedClasses) {
  const int64_t real = now_ns();
  {
    const SimulatedClock outer(1'000);
    EXPECT_EQ(now_ns(), 1'000);
    EXPECT_EQ(Deadline::after_ns(5).moment_ns(), 1'005);
    const SimulatedClock inner(7);
    EXPECT_EQ(now_ns(), 7);
  }
  EXPECT_GE(now_ns(), real);
}

// Jobs that have shown faults of the product, or show those that planted_faults.py plants.
TEST(SimulatedJobs, KeepWhatMustHoldWhereItWasBroken) {
  for (const uint64_t seed :
       {163,    258,    746,    4260,   4911,    6411,    11147,   18170,   64726,     66166,
        244342, 256933, 403581, 425772, 1835619, 1841424, 2001954, 2010033, 110229834, 171013863}) {
    Totals totals;
    EXPECT_TRUE(run_job(seed, totals, false)) << "seed " << seed;
  }
}

TEST(SimulatedNamedJobs, KeepWhatMustHoldWhereItWasBroken) {
  for (const uint64_t seed : {305600, 316274, 326200, 711554, 2026848, 2630882, 170001580}) {
    Totals totals;
    EXPECT_TRUE(run_job(seed, totals, false, Job::Program::named)) << "seed " << seed;
  }
}

// Runs jobs until some have failed, and prints how many there were.
void run_jobs(Job::Program program, uint64_t usual) {
  const uint64_t one = number_in("SIMULATION_SEED", 0);
  const uint64_t first = one != 0 ? one : number_in("SIMULATION_FIRST_SEED", 1);
  const uint64_t seeds = one != 0 ? 1 : number_in("SIMULATION_SEEDS", usual);
  Totals totals;
  int failures = 0;
  const auto most = static_cast<int>(number_in("SIMULATION_FAILURES", 5));
  for (uint64_t seed = first; seed < first + seeds && failures < most; ++seed) {
    if (run_job(seed, totals, one != 0, program)) continue;
    ++failures;
    Totals again;
    if (one == 0) run_job(seed, again, true, program);
    ADD_FAILURE() << "seed " << seed;
  }
  std::printf("simulation: %lld jobs of %.1f hours, %llu events, at most %llu in one (seed %llu)\n",
              static_cast<long long>(totals.jobs), totals.hours, static_cast<unsigned long long>(totals.events),
              static_cast<unsigned long long>(totals.most_events), static_cast<unsigned long long>(totals.longest));
  for (const auto& [what, count] : totals.counts)
    std::printf("  %8lld  %s\n", static_cast<long long>(count), what.c_str());
}

TEST(SimulatedJobs, KeepWhatMustHoldWhateverHappens) { run_jobs(Job::Program::ordered, 1600); }

TEST(SimulatedLateJobs, KeepWhatMustHoldWhateverHappens) { run_jobs(Job::Program::late, 1600); }

TEST(SimulatedNamedJobs, KeepWhatMustHoldWhateverHappens) { run_jobs(Job::Program::named, 300); }

}  // namespace
}  // namespace fdl::simulation
