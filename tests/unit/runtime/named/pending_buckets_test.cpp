// Tests of PendingBuckets: the order of the buckets, and which of them are launched together.
#include "runtime/named/pending_buckets.h"

#include <gtest/gtest.h>

#include "tests/unit/runtime/named/planned.h"

namespace fdl {
namespace {

class PendingBucketsTest : public testing::Test {
 protected:
  void Append(const std::string& name, bool launch_with_next = false) {
    Bucket bucket;
    bucket.names = {name};
    bucket.launch_with_next = launch_with_next;
    pending_.append({std::make_shared<const Bucket>(std::move(bucket)), Entries(1)});
  }
  std::string Take() { return pending_.take_front().bucket->names.front(); }

  PendingBuckets pending_;
};

TEST_F(PendingBucketsTest, BucketsLeaveInTheOrderOfTheirArrival) {
  EXPECT_TRUE(pending_.empty());
  Append("a");
  Append("b");
  EXPECT_EQ(Take(), "a");
  EXPECT_EQ(Take(), "b");
  EXPECT_TRUE(pending_.empty());
}

TEST_F(PendingBucketsTest, BytesAreThoseOfTheBucketsThatHaveNotBegun) {
  Bucket bucket;
  bucket.names = {"a", "b"};
  bucket.element_counts = {3, 5};
  for (int i = 0; i < 2; ++i) pending_.append({std::make_shared<const Bucket>(bucket), Entries(2)});
  Append("an error bucket has none");
  EXPECT_EQ(pending_.bytes(), 64u);
  Take();
  EXPECT_EQ(pending_.bytes(), 32u);
  pending_.take_all();
  EXPECT_EQ(pending_.bytes(), 0u);
}

TEST_F(PendingBucketsTest, OperationThatAllRanksHaveSubmittedForgetsTheReportOfMissingRanks) {
  test::Tensor agreed({1});
  test::Tensor waits({1});
  for (test::Tensor* each : {&agreed, &waits}) {
    each->handle->note_stall(std::make_shared<const std::string>("missing: rank 1"), 5);
  }
  pending_.expect_stalls();
  pending_.append(test::planned_sum({&agreed}));
  EXPECT_EQ(agreed.handle->stall().text, nullptr);
  ASSERT_NE(waits.handle->stall().text, nullptr);
  EXPECT_EQ(*waits.handle->stall().text, "missing: rank 1");
  EXPECT_EQ(waits.handle->stall().at_ns, 5);
  waits.handle->finish_one({});
  waits.handle->note_stall(std::make_shared<const std::string>("a late report"), 6);
  EXPECT_EQ(waits.handle->stall().text, nullptr);
}

TEST_F(PendingBucketsTest, GroupEndsWithTheFirstBucketThatIsNotLaunchedWithTheNextOne) {
  Append("alone");
  Append("a", true);
  Append("b", true);
  Append("c");
  Append("d", true);
  Append("e");
  EXPECT_FALSE(pending_.front_begins_group());
  Take();
  EXPECT_TRUE(pending_.front_begins_group());
  EXPECT_EQ(pending_.group_size(), 3u);
}

TEST_F(PendingBucketsTest, DissolvedGroupRunsSinglyAndTheNextGroupDoesNot) {
  Append("a", true);
  Append("b");
  Append("c", true);
  Append("d");
  pending_.dissolve_group();
  EXPECT_FALSE(pending_.front_begins_group());
  EXPECT_EQ(Take(), "a");
  EXPECT_FALSE(pending_.front_begins_group());
  EXPECT_EQ(Take(), "b");
  EXPECT_TRUE(pending_.front_begins_group());
  EXPECT_EQ(pending_.group_size(), 2u);
}

TEST_F(PendingBucketsTest, TakingAllForgetsADissolvedGroup) {
  Append("a", true);
  Append("b");
  pending_.dissolve_group();
  EXPECT_EQ(pending_.take_all().size(), 2u);
  EXPECT_TRUE(pending_.empty());
  Append("c", true);
  Append("d");
  EXPECT_TRUE(pending_.front_begins_group());
}

// ---- errors ----

using PendingBucketsDeathTest = PendingBucketsTest;

TEST_F(PendingBucketsDeathTest, GroupWithoutItsLastBucketIsAProgrammingError) {
  Append("a", true);
  EXPECT_DEATH(pending_.group_size(), "count < buckets_.size");
}

}  // namespace
}  // namespace fdl
