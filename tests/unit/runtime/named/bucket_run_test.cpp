// Tests of the runs of a bucket on the CPU, in a group of one rank: what is written when, on trial and otherwise.
#include "runtime/named/bucket/bucket_run.h"

#include <numeric>

#include "runtime/named/bucket/start_bucket.h"
#include "runtime/named/bucket/trial_run.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/runtime/named/planned.h"

namespace fdl::test {
namespace {

class BucketRunTest : public testing::Test {
 protected:
  // Runs a bucket until it is done or on trial.
  std::unique_ptr<BucketRun> Run(PlannedBucket planned) {
    auto run = start_bucket(std::move(planned), *comm_, fusion_, telemetry_, nullptr, nullptr);
    Drive(*run);
    return run;
  }
  void Drive(BucketRun& run) {
    while (!run.done() && !run.tried()) {
      comm_->progress();
      run.progress();
    }
  }

  const Config config_ = make_config();
  std::unique_ptr<Communicator> comm_ = make_communicator(unique_id(), 0, 1, config_);
  FusionBuffer fusion_;
  NamedTelemetry telemetry_;
};

std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.f);
  return values;
}

// ---- agreed on ----

TEST_F(BucketRunTest, AgreedBucketsAreNotOnTrial) {
  Tensor single({1, 2});
  EXPECT_TRUE(Run(planned_sum({&single}))->done());
  EXPECT_EQ(single.output, single.input);
  Tensor a({3, 4, 5});
  Tensor b({6});
  const auto fused = Run(planned_sum({&a, &b}));
  EXPECT_TRUE(fused->done());
  EXPECT_TRUE(fused->status().ok());
  EXPECT_EQ(a.output, a.input);
  EXPECT_EQ(b.output, b.input);
}

TEST_F(BucketRunTest, MissingTensorContributesZerosAndReceivesNothing) {
  Tensor a({3, 4});
  Tensor missing({6});
  PlannedBucket planned = planned_sum({&a, &missing});
  planned.entries[1].reset();
  EXPECT_TRUE(Run(std::move(planned))->status().ok());
  EXPECT_EQ(a.output, a.input);
  EXPECT_EQ(missing.output, std::vector<float>({0}));
}

TEST_F(BucketRunTest, AgreedBarrierAndJoinNeedNoCollective) {
  for (const RequestKind kind : {RequestKind::barrier, RequestKind::join}) {
    Tensor tensor({1});
    PlannedBucket planned = planned_sum({&tensor});
    Bucket bucket = *planned.bucket;
    bucket.kind = kind;
    bucket.last_joined = 3;
    planned.bucket = std::make_shared<const Bucket>(bucket);
    const auto run = start_bucket(std::move(planned), *comm_, fusion_, telemetry_, nullptr, nullptr);
    EXPECT_TRUE(run->done());
    EXPECT_EQ(tensor.handle->output(0).last_joined, 3);
  }
}

TEST_F(BucketRunTest, AdasumOfOneRankReturnsTheScaledInput) {
  Tensor a({3, 4});
  Tensor b({6});
  PlannedBucket planned = planned_sum({&a, &b});
  Bucket bucket = *planned.bucket;
  bucket.op = static_cast<uint8_t>(Op::adasum);
  bucket.prescale = 2;
  bucket.postscale = 4;
  planned.bucket = std::make_shared<const Bucket>(bucket);
  EXPECT_TRUE(Run(std::move(planned))->status().ok());
  EXPECT_EQ(a.output, std::vector<float>({24, 32}));
  EXPECT_EQ(b.output, std::vector<float>({48}));
}

// ---- on trial ----

TEST_F(BucketRunTest, FusedBucketWritesItsOutputsOnlyAfterTheTrial) {
  Tensor a({3, 4});
  Tensor b({6});
  a.reduce_in_place();
  const auto run = Run(planned_sum({&a, &b}, /*provisional=*/true));
  ASSERT_TRUE(run->tried());
  EXPECT_FALSE(run->progress());
  EXPECT_EQ(b.output, std::vector<float>({0}));
  run->go_on();
  Drive(*run);
  EXPECT_TRUE(run->done());
  EXPECT_FALSE(run->withdrawn());
  EXPECT_EQ(a.input, std::vector<float>({3, 4}));
  EXPECT_EQ(b.output, std::vector<float>({6}));
}

TEST_F(BucketRunTest, WithdrawnFusedBucketWritesNothing) {
  Tensor a({3, 4});
  Tensor b({6});
  const auto run = Run(planned_sum({&a, &b}, /*provisional=*/true));
  ASSERT_TRUE(run->tried());
  run->withdraw();
  EXPECT_TRUE(run->done());
  EXPECT_TRUE(run->withdrawn());
  EXPECT_TRUE(run->status().ok());
  EXPECT_EQ(a.output, std::vector<float>({0, 0}));
  EXPECT_EQ(b.output, std::vector<float>({0}));
}

TEST_F(BucketRunTest, SmallTensorRunsOnTrialAsAWhole) {
  Tensor tensor({1, 2, 3});
  const auto run = Run(planned_sum({&tensor}, /*provisional=*/true));
  ASSERT_TRUE(run->tried());
  run->go_on();
  EXPECT_TRUE(run->done());
  EXPECT_EQ(tensor.output, tensor.input);
}

TEST_F(BucketRunTest, LargeTensorRunsItsFirstElementsOnTrialAndThenTheRest) {
  const std::size_t tried = TrialRun::kTrialBytes / sizeof(float);
  Tensor tensor(counting(tried + 5));
  const auto run = Run(planned_sum({&tensor}, /*provisional=*/true));
  ASSERT_TRUE(run->tried());
  EXPECT_EQ(tensor.output[tried - 1], tensor.input[tried - 1]);
  EXPECT_EQ(tensor.output[tried], 0);
  run->go_on();
  EXPECT_FALSE(run->tried());
  Drive(*run);
  EXPECT_TRUE(run->done());
  EXPECT_EQ(tensor.output, tensor.input);
}

// A scale makes the result in place differ from the input.
TEST_F(BucketRunTest, WithdrawRestoresATensorThatIsReducedInPlace) {
  Tensor tensor({1, 2, 3});
  tensor.reduce_in_place();
  PlannedBucket planned = planned_sum({&tensor}, /*provisional=*/true);
  Bucket bucket = *planned.bucket;
  bucket.postscale = 10;
  planned.bucket = std::make_shared<const Bucket>(bucket);
  const auto run = Run(std::move(planned));
  ASSERT_TRUE(run->tried());
  EXPECT_EQ(tensor.input, std::vector<float>({10, 20, 30}));
  run->withdraw();
  EXPECT_EQ(tensor.input, std::vector<float>({1, 2, 3}));
}

TEST_F(BucketRunTest, TensorThatThisRankLacksRunsWithZerosOnTrial) {
  Tensor tensor({1, 2, 3});
  PlannedBucket planned = planned_sum({&tensor}, /*provisional=*/true);
  planned.entries.front().reset();
  const auto run = Run(std::move(planned));
  ASSERT_TRUE(run->tried());
  run->withdraw();
  EXPECT_TRUE(run->status().ok());
  EXPECT_EQ(tensor.output, std::vector<float>({0, 0, 0}));
}

TEST_F(BucketRunTest, ProvisionalBarrierRunsACollective) {
  Tensor tensor({1});
  PlannedBucket planned = planned_sum({&tensor}, /*provisional=*/true);
  Bucket bucket = *planned.bucket;
  bucket.kind = RequestKind::barrier;
  planned.bucket = std::make_shared<const Bucket>(bucket);
  const auto run = Run(std::move(planned));
  ASSERT_TRUE(run->tried());
  run->go_on();
  EXPECT_TRUE(run->done());
}

// ---- errors ----

TEST_F(BucketRunTest, BucketOfAnInterruptedCommunicatorEndsWithItsError) {
  comm_->interrupt(Status(Code::aborted, "stopped by the test"));
  Tensor tensor({1});
  const auto run = Run(planned_sum({&tensor}));
  EXPECT_TRUE(run->done());
  EXPECT_EQ(run->status().code(), Code::aborted);
  EXPECT_EQ(run->status().error().operation, "allreduce '0'");
}

TEST_F(BucketRunTest, AllocationOfSymmetricMemoryWithoutADeviceFailsAlone) {
  Tensor tensor({1});
  PlannedBucket planned = planned_sum({&tensor});
  Bucket bucket = *planned.bucket;
  bucket.kind = RequestKind::broadcast;
  bucket.root = 0;
  planned.bucket = std::make_shared<const Bucket>(bucket);
  planned.entries.front()->allocates_symmetric = true;
  const auto run = Run(std::move(planned));
  EXPECT_EQ(run->status().code(), Code::unsupported);
  EXPECT_TRUE(comm_->status().ok());
}

}  // namespace
}  // namespace fdl::test
