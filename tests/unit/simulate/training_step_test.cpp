// Tests of simulate_step(): which gradients share a bucket, and what the backward pass hides. Times are exact in
// binary.
#include "simulate/training_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fdl {
namespace {

using testing::HasSubstr;

constexpr int64_t kMi = 1 << 20;

// An allreduce of a MiB takes a second.
Result<double> second_a_mebibyte(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMi); }

// Each gradient is above the limit of the default cut, so it has a bucket of its own.
TrainingStep step_of(std::vector<StepGradient> gradients, double compute_s) {
  return {.gradients = std::move(gradients), .compute_s = compute_s, .copy_bytes_per_s = 1e30, .cut = {}};
}

TEST(TrainingStep, HidesWhatEndsBeforeTheComputation) {
  const auto step = simulate_step(step_of({{kMi / 4, 1}, {kMi / 4, 4}}, 8), second_a_mebibyte);
  ASSERT_TRUE(step.ok());
  ASSERT_EQ(step->buckets.size(), 2u);
  EXPECT_EQ(step->buckets[0].begin_s, 1);
  EXPECT_EQ(step->buckets[0].end_s, 2);
  EXPECT_EQ(step->buckets[1].begin_s, 4);
  EXPECT_EQ(step->seconds, 8);
  EXPECT_EQ(step->communication_s, 2);
  EXPECT_EQ(step->exposed_s, 0);
}

TEST(TrainingStep, BucketsWaitForEachOther) {
  const auto step = simulate_step(step_of({{kMi, 1}, {kMi, 2}, {kMi, 3}}, 3), second_a_mebibyte);
  ASSERT_TRUE(step.ok());
  EXPECT_EQ(step->buckets[1].ready_s, 2);
  EXPECT_EQ(step->buckets[1].begin_s, 5);
  EXPECT_EQ(step->seconds, 13);
  EXPECT_EQ(step->exposed_s, 10);
}

TEST(TrainingStep, SmallGradientsShareABucketThatIsReadyWithTheLast) {
  TrainingStep step = step_of({{1000, 1}, {1000, 2}, {kMi, 3}, {1000, 4}}, 4);
  step.copy_bytes_per_s = 12000;
  const auto simulated = simulate_step(step, [](int64_t) { return Result<double>(0.0); });
  ASSERT_TRUE(simulated.ok());
  ASSERT_EQ(simulated->buckets.size(), 2u);
  EXPECT_EQ(simulated->buckets[0].tensors, 1);
  EXPECT_EQ(simulated->buckets[1].tensors, 3);
  EXPECT_EQ(simulated->buckets[1].bytes, 12000);
  EXPECT_EQ(simulated->buckets[1].ready_s, 4);
  EXPECT_EQ(simulated->buckets[1].end_s, 6) << "packed and unpacked";
}

TEST(TrainingStep, TakesAnotherCut) {
  TrainingStep step = step_of({{1000, 1}, {1000, 2}}, 4);
  step.cut = BucketCut{.bucket_bytes = 4000, .alone_bytes = 4000};
  EXPECT_EQ(simulate_step(step, second_a_mebibyte)->buckets.size(), 2u);
}

TEST(TrainingStep, EachSizeIsSimulatedOnce) {
  int calls = 0;
  const auto counted = [&calls](int64_t bytes) {
    ++calls;
    return second_a_mebibyte(bytes);
  };
  ASSERT_TRUE(simulate_step(step_of({{kMi, 1}, {kMi, 2}, {2 * kMi, 3}}, 3), counted).ok());
  EXPECT_EQ(calls, 2);
}

TEST(TrainingStep, FailsWithItsAllreduceAndWithoutGradients) {
  const auto too_large = [](int64_t) { return Result<double>(Status(Code::invalid_argument, "too large")); };
  EXPECT_THAT(simulate_step(step_of({{kMi, 1}}, 3), too_large).status().text(), HasSubstr("too large"));
  EXPECT_THAT(simulate_step(step_of({}, 3), second_a_mebibyte).status().text(), HasSubstr("without gradients"));
}

TEST(TrainingStep, GradientsComeInReverseOverTheBackwardPass) {
  const auto gradients = even_gradients({10, 20, 30, 40}, 16, 0.5);
  ASSERT_EQ(gradients.size(), 4u);
  EXPECT_EQ(gradients[0].elements, 40);
  EXPECT_EQ(gradients[0].ready_s, 10);
  EXPECT_EQ(gradients[3].elements, 10);
  EXPECT_EQ(gradients[3].ready_s, 16);
}

}  // namespace
}  // namespace fdl
