// Tests of the tuner on synthetic steps: noise, drift, outliers, bursts, jumping clocks, changes of regime; what it
// finds, what it leaves alone, and what the search costs.
#include "agree/tuning/step_tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace fdl {
namespace {

constexpr uint64_t kSeed = 4711;
constexpr BucketCut kUsual{8 << 20, 512 << 10};
constexpr BucketCut kBadStart{64 << 10, 64 << 10};

// The mean time of a step, in ns, with a cut.
using Cost = std::function<double(BucketCut)>;

constexpr double kStepNs = 1e7;

double equal(BucketCut) { return kStepNs; }

// A factor of 1.3 for each doubling away from buckets of 2 MiB.
double best_at_2_mib(BucketCut cut) {
  const double doublings = std::abs(std::log2(static_cast<double>(cut.bucket_bytes) / (2 << 20)));
  return kStepNs * std::pow(1.3, doublings);
}

// A job that runs steps as the tuner requires. Each test changes what disturbs the steps.
class Job {
 public:
  Job(uint64_t seed, Cost cost, BucketCut start, TunerOptions options = {})
      : random_(seed), cost_(std::move(cost)), start_(start), tuner_(options, start, kUsual) {}

  // The disturbance of a step: a factor of its time.
  std::function<double(std::mt19937_64&, uint64_t step)> noise = [](std::mt19937_64& random, uint64_t) {
    return std::exp(std::normal_distribution<double>(0, 0.05)(random));
  };
  // What the clock shows more than the time.
  std::function<int64_t(std::mt19937_64&, uint64_t step)> jump = [](std::mt19937_64&, uint64_t) { return 0; };
  // After how many steps a block is interrupted. 0: never.
  std::size_t interrupt_every = 0;

  // Runs until the search is over. Returns false if it does not end within `most` steps.
  bool run(uint64_t most = 200'000) {
    while (steps_ < most) {
      const StepTuner::Block block = tuner_.next([](BucketCut) { return true; });
      if (tuner_.take_sample()) ++samples_;
      if (block.rounds == 0) return true;
      for (uint64_t i = 0; i < block.rounds; ++i) {
        if (interrupt_every > 0 && steps_ % interrupt_every == interrupt_every - 1) {
          step(block.cut);
          tuner_.interrupt();
          break;
        }
        step(block.cut);
      }
    }
    return false;
  }
  void change_cost(Cost cost) { cost_ = std::move(cost); }

  StepTuner& tuner() { return tuner_; }
  uint64_t steps() const { return steps_; }
  uint64_t samples() const { return samples_; }
  // The steps, and what they took more than they would have taken with the first cut, both by their mean times.
  double lost_share() const { return lost_ / elapsed_; }
  double most_lost_share() const { return most_lost_share_; }
  uint64_t first_candidate() const { return first_candidate_; }

 private:
  void step(BucketCut cut) {
    const double mean = cost_(cut);
    now_ns_ += static_cast<int64_t>(mean * noise(random_, steps_)) + jump(random_, steps_);
    if (cut != start_ && first_candidate_ == 0) first_candidate_ = steps_;
    ++steps_;
    elapsed_ += cost_(start_);
    lost_ += mean - cost_(start_);
    most_lost_share_ = std::max(most_lost_share_, lost_ / elapsed_);
    tuner_.finish_step(now_ns_);
  }

  std::mt19937_64 random_;
  Cost cost_;
  BucketCut start_;
  StepTuner tuner_;
  int64_t now_ns_ = 1'000'000'000;
  uint64_t steps_ = 0, samples_ = 0, first_candidate_ = 0;
  double elapsed_ = 0, lost_ = 0, most_lost_share_ = 0;
};

// How many of `jobs` change the cut although all cuts are equal.
template <typename Disturb>
int wrong_changes(int jobs, const Disturb& disturb) {
  int changed = 0;
  for (int i = 0; i < jobs; ++i) {
    Job job(kSeed + static_cast<uint64_t>(i), equal, kUsual);
    disturb(job);
    EXPECT_TRUE(job.run()) << "the search does not end";
    changed += job.tuner().changes() > 0 ? 1 : 0;
  }
  return changed;
}

// How many of `jobs` end with a cut that takes at most 1.35 of the best time, from a start that takes four times that.
template <typename Disturb>
int mended(int jobs, const Disturb& disturb) {
  int found = 0;
  for (int i = 0; i < jobs; ++i) {
    Job job(kSeed + static_cast<uint64_t>(i), best_at_2_mib, kBadStart);
    disturb(job);
    EXPECT_TRUE(job.run()) << "the search does not end";
    found += best_at_2_mib(job.tuner().kept()) <= 1.35 * kStepNs ? 1 : 0;
  }
  return found;
}

void nothing(Job&) {}

void drift(Job& job) {
  job.noise = [](std::mt19937_64& random, uint64_t step) {
    return (1 + 0.001 * static_cast<double>(step)) * std::exp(std::normal_distribution<double>(0, 0.02)(random));
  };
}

// One step in 40 takes up to a hundred times as long.
void outliers(Job& job) {
  job.noise = [](std::mt19937_64& random, uint64_t) {
    const double usual = std::exp(std::normal_distribution<double>(0, 0.03)(random));
    return random() % 40 == 0 ? usual * static_cast<double>(2 + random() % 98) : usual;
  };
}

// The steps take 1 or 1.8 times as long, about 25 in a row.
void bursts(Job& job) {
  job.noise = [slow = false](std::mt19937_64& random, uint64_t) mutable {
    if (random() % 25 == 0) slow = !slow;
    return (slow ? 1.8 : 1.0) * std::exp(std::normal_distribution<double>(0, 0.03)(random));
  };
}

// Every second step takes longer, as where gradients are accumulated.
void alternation(Job& job) {
  job.noise = [](std::mt19937_64& random, uint64_t step) {
    return (step % 2 == 0 ? 1.0 : 1.4) * std::exp(std::normal_distribution<double>(0, 0.02)(random));
  };
}

void jumps(Job& job) {
  job.jump = [](std::mt19937_64& random, uint64_t) -> int64_t {
    if (random() % 50 != 0) return 0;
    return random() % 2 == 0 ? -10'000'000'000 : 3'600'000'000'000;
  };
}

void interruptions(Job& job) { job.interrupt_every = 61; }

TEST(StepTuner, KeepsTheCutWhereNothingIsToBeGained) {
  EXPECT_LE(wrong_changes(200, nothing), 4);
  EXPECT_LE(wrong_changes(100, drift), 2);
  EXPECT_LE(wrong_changes(100, outliers), 4);
  EXPECT_LE(wrong_changes(100, bursts), 10) << "bursts as long as a block depend on it by chance";
  EXPECT_LE(wrong_changes(100, alternation), 4);
  EXPECT_LE(wrong_changes(50, jumps), 2);
  EXPECT_LE(wrong_changes(50, interruptions), 2);
}

TEST(StepTuner, MendsABadStart) {
  EXPECT_GE(mended(50, nothing), 49);
  EXPECT_GE(mended(50, drift), 49);
  EXPECT_GE(mended(50, outliers), 47);
  EXPECT_GE(mended(50, bursts), 45);
  EXPECT_GE(mended(50, alternation), 45);
  EXPECT_GE(mended(50, jumps), 45);
  EXPECT_GE(mended(50, interruptions), 47);
}

TEST(StepTuner, TellsTheGain) {
  Job job(kSeed, best_at_2_mib, kBadStart);
  ASSERT_TRUE(job.run());
  EXPECT_NEAR(job.tuner().gain(), best_at_2_mib(job.tuner().kept()) / best_at_2_mib(kBadStart), 0.1);
  EXPECT_GT(job.tuner().trials(), 0);
  EXPECT_GT(job.samples(), 10u);
}

TEST(StepTuner, IgnoresAGainBelowOnePercent) {
  Job job(
      kSeed, [](BucketCut cut) { return cut == kUsual ? kStepNs * 0.995 : kStepNs; }, kBadStart);
  job.noise = [](std::mt19937_64&, uint64_t) { return 1; };
  ASSERT_TRUE(job.run());
  EXPECT_EQ(job.tuner().kept(), kBadStart);
}

TEST(StepTuner, LosesAtMostTwoPercentOfTheTime) {
  for (const double slower : {1.02, 1.1, 1.5, 2.0, 3.0}) {
    Job job(
        kSeed, [slower](BucketCut cut) { return cut == kUsual ? kStepNs : slower * kStepNs; }, kUsual);
    ASSERT_TRUE(job.run());
    EXPECT_EQ(job.tuner().kept(), kUsual);
    EXPECT_LE(job.most_lost_share(), 0.021) << "candidates take " << slower << " times as long";
    EXPECT_GE(job.first_candidate(), 200u) << "the time that the first candidate may lose had not passed";
  }
}

// A candidate that is slower than expected loses more than it may in its first two steps, and no other one runs before
// that is made up for.
TEST(StepTuner, MakesUpForACandidateThatIsMuchSlowerThanExpected) {
  Job job(
      kSeed, [](BucketCut cut) { return cut == kUsual ? kStepNs : 20 * kStepNs; }, kUsual);
  ASSERT_TRUE(job.run());
  const double excess = job.lost_share() * static_cast<double>(job.steps()) - 0.02 * static_cast<double>(job.steps());
  EXPECT_LE(excess, 2 * 19 + 10)
      << "in steps: two steps of one candidate lose 19 each; the last 10 are 2 % of 500 steps";
}

TEST(StepTuner, TakesBackACandidateThatIsInterruptedAgainAndAgain) {
  StepTuner tuner({}, kUsual, kUsual);
  int64_t now = 1;
  int candidates = 0;
  for (int i = 0; i < 5000 && !tuner.done(); ++i) {
    const auto block = tuner.next([](BucketCut) { return true; });
    const bool candidate = block.cut != kUsual;
    candidates += candidate ? 1 : 0;
    for (uint64_t step = 0; step < (candidate ? 1 : block.rounds); ++step) {
      now += candidate ? 30 : 10;
      tuner.finish_step(now);
    }
    if (candidate) tuner.interrupt();
    EXPECT_LE(tuner.lost_ns(), 0.021 * tuner.elapsed_ns() + 20);
  }
  EXPECT_TRUE(tuner.done());
  EXPECT_EQ(tuner.changes(), 0);
  EXPECT_GE(candidates, 12);
}

TEST(StepTuner, FollowsAChangeOfAllTimes) {
  for (const double factor : {0.3, 4.0}) {
    Job job(kSeed, best_at_2_mib, kBadStart);
    EXPECT_FALSE(job.run(260)) << "the search is over before the change";
    job.change_cost([factor](BucketCut cut) { return factor * best_at_2_mib(cut); });
    ASSERT_TRUE(job.run());
    EXPECT_LE(best_at_2_mib(job.tuner().kept()), 1.35 * kStepNs);
  }
}

TEST(StepTuner, SearchesAgainForOtherTensorsThreeTimes) {
  Job job(kSeed, equal, kUsual);
  ASSERT_TRUE(job.run());
  for (int i = 0; i < 3; ++i) {
    const int candidates = job.tuner().candidates();
    job.tuner().restart();
    EXPECT_FALSE(job.tuner().done());
    ASSERT_TRUE(job.run());
    EXPECT_GT(job.tuner().candidates(), candidates);
  }
  job.tuner().restart();
  EXPECT_TRUE(job.tuner().done());
}

TEST(StepTuner, TriesNoCutThatChangesNothing) {
  StepTuner tuner({}, kBadStart, kUsual);
  EXPECT_EQ(tuner.next([](BucketCut) { return false; }).rounds, 0u);
  EXPECT_TRUE(tuner.done());
  EXPECT_EQ(tuner.candidates(), 0);
}

TEST(StepTuner, StaysWithinItsLimits) {
  TunerOptions options;
  options.least = 64 << 10;
  options.most = 128 << 10;
  StepTuner tuner(options, kBadStart, kUsual);
  std::vector<BucketCut> asked;
  tuner.next([&](BucketCut cut) {
    asked.push_back(cut);
    return false;
  });
  for (const BucketCut cut : asked) {
    EXPECT_GE(cut.alone_bytes, options.least);
    EXPECT_LE(cut.bucket_bytes, options.most);
    EXPECT_LE(cut.alone_bytes, cut.bucket_bytes);
  }
}

// With one step in a block, chance makes a clear win too often, so there is none.
TEST(StepTuner, NeedsMoreTrialsOfShorterBlocks) {
  TunerOptions options;
  options.steps = 1;
  options.warmup = 0;
  int changed = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    Job job(kSeed + i, equal, kUsual, options);
    ASSERT_TRUE(job.run());
    changed += job.tuner().changes() > 0 ? 1 : 0;
  }
  EXPECT_LE(changed, 3);
}

TEST(StepTuner, CountsNoStepBeyondTheBlock) {
  StepTuner tuner({}, kUsual, kUsual);
  const auto block = tuner.next([](BucketCut) { return true; });
  for (uint64_t i = 0; i < 2 * block.rounds; ++i) tuner.finish_step(static_cast<int64_t>(1000 * (i + 1)));
  EXPECT_TRUE(tuner.block_is_over());
  EXPECT_FALSE(tuner.take_sample());
  tuner.next([](BucketCut) { return true; });
  EXPECT_NEAR(tuner.elapsed_ns(), 1000 * static_cast<double>(block.rounds - 1), 1) << "the first step has no beginning";
}

}  // namespace
}  // namespace fdl
