// Tests of operations that fail without the entry of a rank which submits it later.
#include "tests/unit/runtime/named/driven_ranks.h"

namespace fdl::test {
namespace {

// Rank 1 is late by more than the stall limit.
class LateEntriesTest : public testing::Test {
 protected:
  void stall(Tensor& tensor, const std::string& name) {
    ranks_[0].submit(tensor, name);
    while (!tensor.handle->done()) ranks_.progress({0, 1});
    ASSERT_EQ(tensor.handle->status().code(), Code::timeout) << tensor.handle->status().text();
  }
  void expect_same_error(const Tensor& late, const Tensor& stalled) {
    ranks_.progress({0, 1});
    ASSERT_TRUE(late.handle->done());
    EXPECT_EQ(late.handle->status().text(), stalled.handle->status().text());
    EXPECT_EQ(late.handle->status().error().culprit_rank, 11);
  }
  void expect_sum(float mine, float others, const std::string& name) {
    Tensor a({mine});
    Tensor b({others});
    ranks_[1].submit(b, name);
    ranks_[0].submit(a, name);
    ranks_.progress({0, 1});
    ASSERT_TRUE(a.handle->done() && b.handle->done());
    EXPECT_TRUE(a.handle->status().ok()) << a.handle->status().text();
    EXPECT_TRUE(b.handle->status().ok()) << b.handle->status().text();
    EXPECT_EQ(a.output, std::vector<float>({mine + others}));
    EXPECT_EQ(b.output, std::vector<float>({mine + others}));
  }

  const DrivenRanks ranks_{2, make_config({{"stall_shutdown_s", "0.05"}, {"stall_warning_s", "0"}})};
};

TEST_F(LateEntriesTest, FailWithTheErrorOfTheOthersAndMeetNoLaterOperation) {
  Tensor first({1});
  Tensor second({2});
  stall(first, "sum");
  stall(second, "sum");
  Tensor late_first({10});
  Tensor late_second({20});
  ranks_[1].submit(late_first, "sum");
  expect_same_error(late_first, first);
  ranks_[1].submit(late_second, "sum");
  expect_same_error(late_second, second);
  expect_sum(3, 30, "sum");
}

TEST_F(LateEntriesTest, OfOtherNamesRun) {
  Tensor stalled({1});
  stall(stalled, "sum");
  expect_sum(1, 2, "another sum");
  Tensor late({10});
  ranks_[1].submit(late, "sum");
  expect_same_error(late, stalled);
}

// A group that the late rank submits whole is not split where one of its members has failed alone.
TEST_F(LateEntriesTest, LeaveTheRestOfTheirGroupUngrouped) {
  Tensor stalled({1});
  stall(stalled, "a");
  Tensor a({10});
  Tensor b({20});
  std::vector<Entry> group;
  for (auto& [tensor, name] : {std::pair<Tensor&, std::string>(a, "a"), std::pair<Tensor&, std::string>(b, "b")}) {
    Entry& entry = group.emplace_back(tensor.entry(name));
    entry.request.group = "pair";
    entry.request.group_size = 2;
  }
  ranks_[1].named.submit(std::move(group));
  expect_same_error(a, stalled);
  Tensor other({2});
  ranks_[0].submit(other, "b");
  ranks_.progress({0, 1});
  ASSERT_TRUE(b.handle->done());
  EXPECT_EQ(b.output, std::vector<float>({22}));
}

TEST_F(LateEntriesTest, AreNotExpectedOfARankThatJoins) {
  Tensor stalled({1});
  stall(stalled, "sum");
  const auto join = [&](int rank) {
    std::vector<Entry> entries;
    Entry& entry = entries.emplace_back();
    auto handle = std::make_shared<Handle>(1);
    entry.handle = handle;
    entry.request = {.kind = RequestKind::join, .name = "join", .dtype = Dtype::uint8};
    ranks_[rank].named.submit(std::move(entries));
    return handle;
  };
  const auto first = join(1);
  const auto second = join(0);
  ranks_.progress({0, 1});
  ASSERT_TRUE(first->done() && second->done());
  EXPECT_TRUE(first->status().ok()) << first->status().text();
  expect_sum(1, 2, "sum");
}

}  // namespace
}  // namespace fdl::test
