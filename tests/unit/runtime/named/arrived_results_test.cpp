// Tests of named operations whose result has arrived on a rank that reads of a loss before it has taken the result.
#include <array>

#include "runtime/named/named_operations.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/runtime/named/planned.h"

namespace fdl::test {
namespace {

// Two ranks, driven by hand.
class ArrivedResultsTest : public testing::Test {
 protected:
  struct Rank {
    explicit Rank(std::unique_ptr<Communicator> made, const Config& config)
        : comm(std::move(made)), named(*comm, config, names) {}

    void submit(Tensor& tensor, const std::string& name) {
      std::vector<Entry> entries;
      entries.push_back(tensor.entry(name));
      named.submit(std::move(entries));
    }

    // As Group does it.
    bool progress() {
      const bool moved = comm->progress();
      return named.progress() || moved;
    }

    const std::vector<std::string> names{"rank 10", "rank 11"};
    std::unique_ptr<Communicator> comm;
    NamedOperations named;
  };

  ArrivedResultsTest() {
    const std::string id = unique_id();
    // Both ends of the loopback are made at once.
    run_ranks(2, [&](int rank) {
      auto comm = make_communicator(id, rank, 2, config_);
      ranks_[static_cast<std::size_t>(rank)] = std::make_unique<Rank>(std::move(comm), config_);
    });
  }

  // Submits one tensor on each rank, and drives both until rank 1 has its result. Rank 0, which comes first in each
  // turn, has not taken its own then.
  void sum_until_rank_1_has_the_result(Tensor& mine, Tensor& others) {
    ranks_[0]->submit(mine, "sum");
    ranks_[1]->submit(others, "sum");
    while (!others.handle->done()) {
      ranks_[0]->progress();
      while (!others.handle->done() && ranks_[1]->progress()) {
      }
    }
  }

  const Config config_ = make_config();
  const Status lost_ = Status::blame(11, "host-1", Code::peer_lost, "rank 11 was lost");
  std::array<std::unique_ptr<Rank>, 2> ranks_;
};

TEST_F(ArrivedResultsTest, TheBucketThatRunsEndsWithItsResultAndLaterOperationsFail) {
  Tensor mine({1, 2});
  Tensor others({10, 20});
  sum_until_rank_1_has_the_result(mine, others);
  ASSERT_TRUE(others.handle->status().ok());
  ASSERT_FALSE(mine.handle->done());
  ranks_[0]->named.fail_all(lost_);
  ASSERT_TRUE(mine.handle->done());
  EXPECT_TRUE(mine.handle->status().ok()) << mine.handle->status().text();
  EXPECT_EQ(mine.output, std::vector<float>({11, 22}));
  Tensor later({1});
  ranks_[0]->submit(later, "later");
  ASSERT_TRUE(later.handle->done());
  EXPECT_EQ(later.handle->status().text(), lost_.text());
}

TEST_F(ArrivedResultsTest, AnotherReasonThanALossEndsTheBucketAtOnce) {
  Tensor mine({1, 2});
  Tensor others({10, 20});
  sum_until_rank_1_has_the_result(mine, others);
  ranks_[0]->named.fail_all(Status(Code::aborted, "enough"));
  ASSERT_TRUE(mine.handle->done());
  EXPECT_EQ(mine.handle->status().code(), Code::aborted);
}

TEST_F(ArrivedResultsTest, ABucketThatWaitsForTheLostRankFails) {
  Tensor mine({1, 2});
  ranks_[0]->submit(mine, "sum");
  while (ranks_[0]->progress()) {
  }
  ranks_[0]->named.fail_all(lost_);
  ASSERT_TRUE(mine.handle->done());
  EXPECT_EQ(mine.handle->status().text(), lost_.text());
}

}  // namespace
}  // namespace fdl::test
