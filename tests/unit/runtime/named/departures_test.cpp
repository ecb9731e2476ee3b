// Tests of named operations that wait for ranks which have left their group in good order.
#include <numeric>

#include "tests/unit/runtime/named/driven_ranks.h"

namespace fdl::test {
namespace {

const Status kFirst(Code::shut_down, "rank 11 has shut down");
const Status kRoot(Code::shut_down, "rank 10 has shut down");

void leave(DrivenRanks::Rank& rank) {
  rank.named.prepare_to_leave();
  rank.named.leave(Status(Code::shut_down, "this rank has left"));
}

TEST(Departures, ARankThatSubmitsAfterTheRootHasLeftNamesTheRankThatLeftFirst) {
  const DrivenRanks ranks(3);
  leave(ranks[1]);
  for (const int rank : {0, 2}) ranks[rank].named.depart(1, kFirst);
  Tensor of_root({1});
  ranks[0].submit(of_root, "sum");
  ranks.progress({0, 2});
  ASSERT_TRUE(of_root.handle->done());
  EXPECT_EQ(of_root.handle->status().code(), Code::shut_down);
  EXPECT_NE(of_root.handle->status().text().find("rank 11"), std::string::npos) << of_root.handle->status().text();
  leave(ranks[0]);
  Tensor late({2});
  ranks[2].submit(late, "another sum");
  ranks.progress({2});
  EXPECT_FALSE(late.handle->done()) << "this rank has no news yet";
  ranks[2].named.depart(0, kRoot);
  ranks.progress({2});
  ASSERT_TRUE(late.handle->done());
  EXPECT_EQ(late.handle->status().text(), kFirst.text());
}

// The news come over the coordinator, which may be faster than the communicator.
TEST(Departures, AMessageThatIsSlowerThanTheNewsOfItsRankEndsNoGroup) {
  const DrivenRanks ranks(3);
  Tensor on_its_way({3});
  ranks[2].submit(on_its_way, "sum");
  ranks.progress({2});
  leave(ranks[2]);
  const Status news(Code::shut_down, "rank 12 has shut down");
  for (const int rank : {0, 1}) ranks[rank].named.depart(2, news);
  Tensor of_root({1});
  Tensor of_other({2});
  ranks[0].submit(of_root, "sum");
  ranks[1].submit(of_other, "sum");
  ranks.progress({0, 1});
  for (const Tensor* tensor : {&of_root, &of_other}) {
    ASSERT_TRUE(tensor->handle->done());
    EXPECT_NE(tensor->handle->status().text().find("rank 12 (host-2) has shut down"), std::string::npos)
        << tensor->handle->status().text();
  }
  EXPECT_TRUE(ranks[0].named.failure().ok()) << ranks[0].named.failure().text();
  EXPECT_TRUE(ranks[1].named.failure().ok()) << ranks[1].named.failure().text();
}

// The root's communicator stays open: where rank 0 serves the coordinator, it waits for the other ranks to leave.
TEST(Departures, OperationsFailAtTheNewsOfTheRootWhileItsConnectionsAreOpen) {
  const DrivenRanks ranks(2);
  Tensor waits({1});
  ranks[1].submit(waits, "sum");
  ranks.progress({0, 1});
  leave(ranks[0]);
  ranks[1].named.depart(0, kRoot);
  ranks.progress({1});
  ASSERT_TRUE(waits.handle->done());
  EXPECT_EQ(waits.handle->status().text(), kRoot.text());
}

// The ranks are a chain: each gets its plans through the one before it.
TEST(Departures, OperationsBelowARelayThatLeavesFailWhileItsConnectionsAreOpen) {
  const DrivenRanks ranks(6, make_config({{"agreement_width", "1"}}));
  std::vector<Tensor> waiting(6, Tensor({1}));
  for (Tensor& tensor : waiting) tensor.handle = std::make_shared<Handle>(1);
  for (const int rank : {0, 3, 5}) ranks[rank].submit(waiting[static_cast<std::size_t>(rank)], "sum");
  ranks.progress({0, 1, 2, 3, 4, 5});
  leave(ranks[1]);
  for (const int rank : {0, 2, 3, 4, 5}) ranks[rank].named.depart(1, kFirst);
  ranks.progress({0, 2, 3, 4, 5});
  for (const int rank : {0, 3, 5}) {
    const Tensor& tensor = waiting[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(tensor.handle->done()) << "rank " << rank;
    EXPECT_NE(tensor.handle->status().text().find("rank 11"), std::string::npos) << tensor.handle->status().text();
  }
}

TEST(Departures, APlanThatTheRootHasSentBeforeItLeftStillRuns) {
  const DrivenRanks ranks(2);
  Tensor mine({1});
  Tensor others({2});
  ranks[0].submit(mine, "sum");
  ranks[1].submit(others, "sum");
  // Rank 1 comes first in each turn, so the root's result is there before rank 1 has taken its own.
  while (!mine.handle->done()) {
    ranks[1].progress();
    while (!mine.handle->done() && ranks[0].progress()) {
    }
  }
  leave(ranks[0]);
  ranks[1].named.depart(0, kRoot);
  ranks.progress({1});
  ASSERT_TRUE(others.handle->done());
  EXPECT_TRUE(others.handle->status().ok()) << others.handle->status().text();
  EXPECT_EQ(others.output, std::vector<float>({3}));
}

// Submits one tensor on each rank until the order is locked. Each rank passes on the plans to the next one.
DrivenRanks locked_chain(int size) {
  DrivenRanks ranks(size, make_config({{"agreement_width", "1"}}));
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  while (ranks[size - 1].named.counts().locked_steps == 0) {
    std::vector<Tensor> tensors(all.size(), Tensor({1}));
    for (const int rank : all) {
      Tensor& tensor = tensors[static_cast<std::size_t>(rank)];
      tensor.handle = std::make_shared<Handle>(1);
      ranks[rank].submit(tensor, "sum");
    }
    ranks.progress(all);
  }
  return ranks;
}

// The root has the result of a round of the locked order and leaves, before the others have taken theirs. They learn
// first that the order is left, and get no counts.
TEST(Departures, ARoundThatTheRootHasFinishedEndsOnAllRanks) {
  const DrivenRanks ranks = locked_chain(3);
  std::vector<Tensor> tensors;
  for (int rank = 0; rank < 3; ++rank) tensors.emplace_back(std::vector<float>{static_cast<float>(rank)});
  for (const int rank : {2, 1, 0}) ranks[rank].submit(tensors[static_cast<std::size_t>(rank)], "sum");
  while (!tensors[0].handle->done()) {
    for (const int rank : {2, 1}) ranks[rank].progress();
    while (!tensors[0].handle->done() && ranks[0].progress()) {
    }
  }
  ranks[0].named.prepare_to_leave();
  ranks.progress({0});  // sends the plan that freezes the order on the other ranks
  leave(ranks[0]);
  for (const int rank : {1, 2}) ranks[rank].named.depart(0, kRoot);
  ranks.progress({1, 2});
  for (const Tensor& tensor : tensors) {
    ASSERT_TRUE(tensor.handle->done());
    EXPECT_TRUE(tensor.handle->status().ok()) << tensor.handle->status().text();
    EXPECT_EQ(tensor.output, std::vector<float>({3}));
  }
}

TEST(Departures, RoundsOfALockedOrderStayCounted) {
  const DrivenRanks ranks(2);
  for (int step = 0; step < 20; ++step) {
    Tensor mine({1});
    Tensor others({2});
    ranks[0].submit(mine, "sum");
    ranks[1].submit(others, "sum");
    ranks.progress({0, 1});
    ASSERT_TRUE(mine.handle->done() && others.handle->done()) << "step " << step;
  }
  const uint64_t rounds = ranks[1].named.counts().locked_steps;
  EXPECT_GE(rounds, 10u);
  leave(ranks[0]);
  ranks[1].named.depart(0, kRoot);
  ranks.progress({1});
  EXPECT_EQ(ranks[1].named.failure().text(), kRoot.text());
  EXPECT_EQ(ranks[1].named.counts().locked_steps, rounds);
}

}  // namespace
}  // namespace fdl::test
