// Tests of named operations whose result has arrived on a rank that reads of a loss before it has taken the result.
#include "tests/unit/runtime/named/driven_ranks.h"

namespace fdl::test {
namespace {

class ArrivedResultsTest : public testing::Test {
 protected:
  // Submits one tensor on each rank, and drives both until rank 1 has its result. Rank 0, which comes first in each
  // turn, has not taken its own then.
  void sum_until_rank_1_has_the_result(Tensor& mine, Tensor& others) {
    ranks_[0].submit(mine, "sum");
    ranks_[1].submit(others, "sum");
    while (!others.handle->done()) {
      ranks_[0].progress();
      while (!others.handle->done() && ranks_[1].progress()) {
      }
    }
  }

  const Status lost_ = Status::blame(11, "host-1", Code::peer_lost, "rank 11 was lost");
  const DrivenRanks ranks_{2};
};

TEST_F(ArrivedResultsTest, TheBucketThatRunsEndsWithItsResultAndLaterOperationsFail) {
  Tensor mine({1, 2});
  Tensor others({10, 20});
  sum_until_rank_1_has_the_result(mine, others);
  ASSERT_TRUE(others.handle->status().ok());
  ASSERT_FALSE(mine.handle->done());
  ranks_[0].named.fail_all(lost_);
  ASSERT_TRUE(mine.handle->done());
  EXPECT_TRUE(mine.handle->status().ok()) << mine.handle->status().text();
  EXPECT_EQ(mine.output, std::vector<float>({11, 22}));
  Tensor later({1});
  ranks_[0].submit(later, "later");
  ASSERT_TRUE(later.handle->done());
  EXPECT_EQ(later.handle->status().text(), lost_.text());
}

TEST_F(ArrivedResultsTest, AnotherReasonThanALossEndsTheBucketAtOnce) {
  Tensor mine({1, 2});
  Tensor others({10, 20});
  sum_until_rank_1_has_the_result(mine, others);
  ranks_[0].named.fail_all(Status(Code::aborted, "enough"));
  ASSERT_TRUE(mine.handle->done());
  EXPECT_EQ(mine.handle->status().code(), Code::aborted);
}

TEST_F(ArrivedResultsTest, ABucketThatWaitsForTheLostRankFails) {
  Tensor mine({1, 2});
  ranks_[0].submit(mine, "sum");
  while (ranks_[0].progress()) {
  }
  ranks_[0].named.fail_all(lost_);
  ASSERT_TRUE(mine.handle->done());
  EXPECT_EQ(mine.handle->status().text(), lost_.text());
}

}  // namespace
}  // namespace fdl::test
