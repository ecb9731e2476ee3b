// Tests that JobMembership sends one message where a job of many ranks would need one for each rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/coordinator/job_membership.h"

namespace fdl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = CoordinatorMessage::Kind;

constexpr int kSize = 8;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = CoordinatorMessage::kMessages;
constexpr int64_t kFormer = 0;

// Rank r is peer 10 + r. Ranks 0 to 3 are on host-a, the others on host-b.
class ManyRanks : public ::testing::Test {
 protected:
  explicit ManyRanks(std::size_t store_bytes = CoordinatorOptions{}.store_bytes)
      : membership_({.size = kSize, .store_bytes = store_bytes, .server_name = "test", .losses_together_from = 4},
                    "here", {}) {}

  using Outgoing = JobMembership::Outgoing;

  void arrive(int rank, int64_t messages = kNow) {
    CoordinatorClient::Hello hello{rank, kSize, rank < 4 ? "host-a" : "host-b", "boot", 100 + rank};
    hello.salt = "salt of " + std::to_string(rank);
    ASSERT_TRUE(membership_.greet(peer(rank), hello, 0, messages));
  }
  void all_arrive(int64_t messages = kNow) {
    for (int rank = 0; rank < kSize; ++rank) arrive(rank, messages);
    membership_.take_outgoing();
  }
  static JobMembership::Peer peer(int rank) { return static_cast<JobMembership::Peer>(10 + rank); }
  Status receive(int rank, CoordinatorMessage message, int64_t now = 0) {
    return membership_.receive(peer(rank), std::move(message), now);
  }
  void leave(int rank, int64_t now) { ASSERT_TRUE(receive(rank, {.kind = Kind::leave}, now).ok()); }
  void publish(int rank, const std::string& key, const std::string& value, int64_t reads = 0) {
    CoordinatorMessage message{.kind = Kind::publish, .number = reads};
    message.key = key;
    message.value = value;
    ASSERT_TRUE(receive(rank, std::move(message)).ok());
  }
  // Fetches one fact, and returns its value. Empty: the rank waits for it.
  std::string fetch(int rank, const std::string& key) {
    CoordinatorMessage message{.kind = Kind::fetch, .id = ++last_fetch_};
    message.key = key;
    EXPECT_TRUE(receive(rank, std::move(message)).ok());
    take();
    const auto replies = sent_to(rank, Kind::reply);
    return replies.empty() ? "" : replies.back().value;
  }
  Status fetch_many(int rank, uint64_t id, std::vector<int> ranks, int64_t timeout = kSecond, int64_t now = 0) {
    CoordinatorMessage message{.kind = Kind::fetch_many, .id = id, .number = timeout};
    message.key = "of ";
    message.ranks = std::move(ranks);
    return receive(rank, std::move(message), now);
  }
  // The messages of a kind to one rank.
  std::vector<CoordinatorMessage> sent_to(int rank, Kind kind) {
    std::vector<CoordinatorMessage> messages;
    for (const Outgoing& one : outgoing_) {
      if (one.peer == peer(rank) && one.message->kind == kind) messages.push_back(*one.message);
    }
    return messages;
  }
  void take() { outgoing_ = membership_.take_outgoing(); }

  JobMembership membership_;
  uint64_t last_fetch_ = 100;
  std::vector<Outgoing> outgoing_;
};

// ---- The table of members ----

TEST_F(ManyRanks, GetOneTableThatIsEncodedOnce) {
  all_arrive();
  for (int rank = 0; rank < kSize; ++rank) {
    ASSERT_TRUE(receive(rank, {.kind = Kind::wait, .id = 7, .number = kSecond}).ok());
  }
  take();
  // Each was answered at once, because all had arrived.
  ASSERT_EQ(sent_to(3, Kind::reply).size(), 1u);
  const CoordinatorMessage reply = sent_to(3, Kind::reply).front();
  EXPECT_THAT(reply.members, IsEmpty());
  ASSERT_TRUE(reply.table);
  EXPECT_EQ(reply.table->hosts.size(), 2u);
  EXPECT_EQ(reply.table->salt, "salt of 0") << "that of rank 0 counts";
}

TEST_F(ManyRanks, ThatWaitForTheLastOneShareOneMessage) {
  for (int rank = 0; rank < kSize - 1; ++rank) {
    arrive(rank, rank == 2 ? kFormer : kNow);
    ASSERT_TRUE(receive(rank, {.kind = Kind::wait, .id = rank == 1 ? 9u : 7u, .number = kSecond}).ok());
  }
  EXPECT_EQ(membership_.absent_ranks(), 1u);
  membership_.take_outgoing();
  arrive(kSize - 1);
  EXPECT_EQ(membership_.absent_ranks(), 0u);
  take();
  std::set<const CoordinatorMessage*> replies;
  for (const Outgoing& one : outgoing_) {
    if (one.message->kind == Kind::reply) replies.insert(one.message.get());
  }
  EXPECT_EQ(replies.size(), 3u) << "one for rank 1 with its number, one for rank 2 of a former version, one for others";
  EXPECT_EQ(sent_to(1, Kind::reply).front().id, 9u);
  EXPECT_EQ(sent_to(2, Kind::reply).front().members.size(), std::size_t{kSize});
  EXPECT_FALSE(sent_to(2, Kind::reply).front().table);
  EXPECT_EQ(sent_to(2, Kind::reply).front().members.front().salt, "") << "only the table has it";
  EXPECT_TRUE(sent_to(6, Kind::reply).front().table);
}

TEST_F(ManyRanks, KeepTheSaltFromOtherMessages) {
  all_arrive();
  ASSERT_TRUE(membership_.query_job(99, 0).ok());
  CoordinatorMessage state{.kind = Kind::state_reply, .id = 1};
  state.state.emplace();
  ASSERT_TRUE(receive(0, state).ok());
  for (const Outgoing& one : membership_.take_outgoing()) {
    EXPECT_EQ(encode(*one.message).find("salt of"), std::string::npos);
  }
}

// ---- Facts ----

TEST_F(ManyRanks, FetchManyFactsByOneRequest) {
  all_arrive();
  publish(1, "of 1", "one");
  publish(5, "of 5", "five");
  take();
  ASSERT_TRUE(fetch_many(0, 3, {5, 1}).ok());
  take();
  ASSERT_EQ(outgoing_.size(), 1u);
  EXPECT_EQ(outgoing_[0].message->id, 3u);
  EXPECT_THAT(outgoing_[0].message->values, ElementsAre("five", "one")) << "in the order of the request";
  EXPECT_THAT(outgoing_[0].message->ranks, IsEmpty());
}

TEST_F(ManyRanks, WaitForTheLastFact) {
  all_arrive();
  ASSERT_TRUE(fetch_many(0, 3, {1, 2, 3}).ok());
  ASSERT_TRUE(fetch_many(4, 3, {2}).ok());
  CoordinatorMessage single{.kind = Kind::fetch, .id = 8};
  single.key = "of 2";
  ASSERT_TRUE(receive(0, single).ok());
  publish(3, "of 3", "three");
  publish(1, "of 1", "one");
  take();
  EXPECT_THAT(sent_to(0, Kind::reply), IsEmpty());
  publish(2, "of 2", "two");
  take();
  const auto replies = sent_to(0, Kind::reply);
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_THAT(replies[0].values, ElementsAre("one", "two", "three"));
  EXPECT_EQ(replies[1].id, 8u);
  EXPECT_EQ(replies[1].value, "two");
  EXPECT_THAT(sent_to(4, Kind::reply).at(0).values, ElementsAre("two"));
}

TEST_F(ManyRanks, GetTheFactsThatAreThereAtTheDeadline) {
  all_arrive();
  publish(2, "of 2", "two");
  membership_.take_outgoing();
  ASSERT_TRUE(fetch_many(0, 3, {1, 2, 3}, kSecond, 5 * kSecond).ok());
  EXPECT_EQ(membership_.next().moment_ns(), 6 * kSecond);
  membership_.tick(6 * kSecond - 1);
  take();
  EXPECT_THAT(outgoing_, IsEmpty());
  membership_.tick(6 * kSecond);
  take();
  ASSERT_EQ(outgoing_.size(), 1u);
  EXPECT_THAT(outgoing_[0].message->values, ElementsAre("", "two", ""));
  EXPECT_THAT(outgoing_[0].message->ranks, ElementsAre(1, 3)) << "those that are missing";
  EXPECT_TRUE(membership_.next().is_never());
  publish(1, "of 1", "late");
  publish(3, "of 3", "late");
  take();
  EXPECT_THAT(sent_to(0, Kind::reply), IsEmpty());
}

TEST_F(ManyRanks, ReadAFactOnceEachBeforeItIsDropped) {
  all_arrive();
  publish(1, "of 1", "one", 3);
  take();
  EXPECT_EQ(fetch(0, "of 1"), "one");
  ASSERT_TRUE(fetch_many(2, 3, {1, 4}).ok());
  publish(4, "of 4", "four", 1);
  take();
  EXPECT_THAT(sent_to(2, Kind::reply).at(0).values, ElementsAre("one", "four"));
  EXPECT_EQ(fetch(5, "of 1"), "one");
  EXPECT_EQ(fetch(6, "of 1"), "") << "it has been read three times";
  EXPECT_EQ(fetch(6, "of 4"), "") << "it has been read once";
  publish(1, "stays", "here");
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(fetch(rank, "stays"), "here");
}

TEST_F(ManyRanks, DropAFactForWhichAllItsReadersWaited) {
  all_arrive();
  EXPECT_EQ(fetch(2, "key"), "");
  EXPECT_EQ(fetch(3, "key"), "");
  publish(0, "key", "value", 2);
  take();
  EXPECT_EQ(sent_to(2, Kind::reply).at(0).value, "value");
  EXPECT_EQ(sent_to(3, Kind::reply).at(0).value, "value");
  EXPECT_EQ(fetch(4, "key"), "");
}

// The store has room for the facts of one communicator, and not of two.
class ManyRanksWithASmallStore : public ManyRanks {
 protected:
  ManyRanksWithASmallStore() : ManyRanks(120) {}
};

TEST_F(ManyRanksWithASmallStore, MakeAnyNumberOfCommunicators) {
  all_arrive();
  for (int i = 0; i < 1000; ++i) {
    const std::string comm = std::to_string(i);
    for (int rank = 1; rank < kSize; ++rank) publish(rank, comm + " made/" + std::to_string(rank), "1", 1);
    for (int rank = 1; rank < kSize; ++rank) ASSERT_EQ(fetch(0, comm + " made/" + std::to_string(rank)), "1");
    publish(0, comm + " all", "1", kSize - 1);
    for (int rank = 1; rank < kSize; ++rank) ASSERT_EQ(fetch(rank, comm + " all"), "1");
  }
}

TEST_F(ManyRanks, AbandonARequestForFacts) {
  all_arrive();
  ASSERT_TRUE(fetch_many(0, 3, {1, 2}).ok());
  ASSERT_TRUE(receive(0, {.kind = Kind::forget, .id = 3}).ok());
  ASSERT_TRUE(fetch_many(5, 4, {1}).ok());
  membership_.closed(peer(5));
  take();
  EXPECT_TRUE(membership_.next().is_never());
  publish(1, "of 1", "one");
  publish(2, "of 2", "two");
  take();
  EXPECT_THAT(sent_to(0, Kind::reply), IsEmpty());
  EXPECT_THAT(sent_to(5, Kind::reply), IsEmpty());
}

TEST_F(ManyRanks, AskForTooMuch) {
  all_arrive();
  EXPECT_FALSE(fetch_many(0, 3, std::vector<int>(kSize + 1, 1)).ok()) << "more ranks than the job has";
  ASSERT_TRUE(fetch_many(1, 3, {2}).ok());
  EXPECT_FALSE(fetch_many(1, 3, {2}).ok()) << "a number that is in use";
  CoordinatorMessage long_key{.kind = Kind::fetch_many};
  long_key.key = std::string(kMostKey + 1, 'k');
  EXPECT_FALSE(receive(2, long_key).ok());
  publish(4, "of 4", std::string(5_MiB, 'x'));
  membership_.take_outgoing();
  ASSERT_TRUE(fetch_many(4, 9, std::vector<int>(kSize, 4)).ok());
  take();
  ASSERT_EQ(outgoing_.size(), 1u);
  EXPECT_EQ(outgoing_[0].message->why.code(), Code::resource);
  EXPECT_THAT(outgoing_[0].message->values, IsEmpty());
  EXPECT_LT(encode(*outgoing_[0].message).size(), 1_MiB);
}

// ---- Losses ----

TEST_F(ManyRanks, ThatAreLostTogetherAreAnnouncedTogether) {
  all_arrive();
  membership_.closed(peer(1));
  take();
  EXPECT_EQ(sent_to(0, Kind::lost).size(), 1u) << "the first one at once";
  for (const int rank : {6, 2}) membership_.closed(peer(rank));
  take();
  EXPECT_THAT(outgoing_, IsEmpty());
  const Deadline due = membership_.next();
  EXPECT_EQ(due.moment_ns(), 7 * 200'000);
  membership_.tick(due.moment_ns());
  take();
  EXPECT_THAT(sent_to(0, Kind::lost), IsEmpty());
  const auto news = sent_to(0, Kind::lost_together);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_THAT(news[0].ranks, ElementsAre(6, 2)) << "in the order of the losses";
  const std::string how = " was lost: its process ended or its connection broke";
  EXPECT_THAT(news[0].values,
              ElementsAre("rank 6 on host-b (process 106)" + how, "rank 2 on host-a (process 102)" + how));
  ASSERT_EQ(news[0].hosts.size(), 2u);
  EXPECT_EQ(news[0].hosts[0].host_name, "host-a");
  EXPECT_THAT(news[0].hosts[0].ranges, ElementsAre(RankRange{2, 1}));
  EXPECT_THAT(sent_to(2, Kind::lost_together), IsEmpty()) << "it was lost itself";
  EXPECT_TRUE(membership_.next().is_never());
}

TEST_F(ManyRanks, OfWhichFewAreLeftLearnOfEachLossAtOnce) {
  all_arrive();
  for (const int rank : {1, 2, 3, 4}) membership_.closed(peer(rank));
  take();
  EXPECT_EQ(sent_to(0, Kind::lost_together).size(), 1u);
  for (const int rank : {5, 6}) {
    membership_.closed(peer(rank));
    take();
    ASSERT_EQ(sent_to(0, Kind::lost).size(), 1u);
    EXPECT_EQ(sent_to(0, Kind::lost)[0].rank, rank);
  }
}

TEST_F(ManyRanks, LearnOfLossesBeforeLaterNews) {
  all_arrive();
  membership_.closed(peer(1));
  take();
  for (const int rank : {2, 3}) membership_.closed(peer(rank));
  leave(4, kSecond);
  take();
  std::vector<Kind> order;
  for (const Outgoing& one : outgoing_) {
    if (one.peer == peer(0)) order.push_back(one.message->kind);
  }
  EXPECT_THAT(order, ElementsAre(Kind::lost_together, Kind::left));
}

TEST_F(ManyRanks, OfAFormerVersionGetEachLoss) {
  arrive(0, CoordinatorMessage::kFirstLosses - 1);
  for (int rank = 1; rank < kSize; ++rank) arrive(rank);
  membership_.take_outgoing();
  for (const int rank : {2, 1}) membership_.closed(peer(rank));
  take();
  const auto each = sent_to(0, Kind::lost);
  ASSERT_EQ(each.size(), 2u);
  EXPECT_EQ(each[0].rank, 2);
  EXPECT_EQ(each[1].rank, 1);
  EXPECT_EQ(sent_to(4, Kind::lost_together).size(), 1u);
}

// ---- Departures ----

TEST_F(ManyRanks, ThatLeaveTogetherAreAnnouncedTogether) {
  all_arrive();
  leave(1, 0);
  take();
  EXPECT_EQ(sent_to(0, Kind::left).size(), 1u) << "the first one at once";
  for (const int rank : {6, 2, 5, 3}) leave(rank, 1000);
  take();
  EXPECT_THAT(sent_to(0, Kind::left), IsEmpty());
  EXPECT_EQ(sent_to(5, Kind::left).size(), 1u) << "its own confirmation does not wait";
  const Deadline due = membership_.next();
  EXPECT_LE(due.moment_ns(), kSecond);
  membership_.tick(due.moment_ns());
  take();
  EXPECT_THAT(sent_to(0, Kind::left), IsEmpty());
  const auto news = sent_to(0, Kind::departed);
  ASSERT_EQ(news.size(), 1u);
  ASSERT_EQ(news[0].hosts.size(), 2u);
  EXPECT_EQ(news[0].hosts[0].host_name, "host-a");
  EXPECT_THAT(news[0].hosts[0].ranges, ElementsAre(RankRange{2, 2}));
  EXPECT_EQ(news[0].hosts[1].host_name, "host-b");
  EXPECT_THAT(news[0].hosts[1].ranges, ElementsAre(RankRange{5, 2}));
  EXPECT_THAT(sent_to(2, Kind::departed), IsEmpty()) << "it has left";
  EXPECT_TRUE(membership_.next().is_never());
}

TEST_F(ManyRanks, OfAFormerVersionGetEachDeparture) {
  arrive(0, kFormer);
  for (int rank = 1; rank < kSize; ++rank) arrive(rank);
  membership_.take_outgoing();
  leave(1, 0);
  leave(2, 1);
  leave(3, 2);
  membership_.take_outgoing();
  membership_.tick(kSecond);
  take();
  const auto each = sent_to(0, Kind::left);
  ASSERT_EQ(each.size(), 2u);
  EXPECT_EQ(each[0].rank, 2);
  EXPECT_EQ(each[0].why.text(), "rank 2 (host-a) has shut down");
  EXPECT_THAT(sent_to(0, Kind::departed), IsEmpty());
  EXPECT_EQ(sent_to(4, Kind::departed).size(), 1u);
}

TEST_F(ManyRanks, LearnOfDeparturesBeforeLaterNews) {
  all_arrive();
  for (const int rank : {1, 2, 3}) leave(rank, 0);
  membership_.closed(peer(4));
  take();
  std::vector<Kind> order;
  for (const Outgoing& one : outgoing_) {
    if (one.peer == peer(0)) order.push_back(one.message->kind);
  }
  EXPECT_THAT(order, ElementsAre(Kind::left, Kind::departed, Kind::lost));
}

TEST_F(ManyRanks, ThatAllLeaveCauseFewMessages) {
  all_arrive();
  for (int rank = 0; rank < kSize; ++rank) leave(rank, 0);
  take();
  EXPECT_EQ(outgoing_.size(), std::size_t{kSize - 1 + kSize}) << "the first departure, and a confirmation to each";
  EXPECT_TRUE(membership_.is_empty());
  membership_.tick(kSecond);
  EXPECT_THAT(membership_.take_outgoing(), IsEmpty());
}

}  // namespace
}  // namespace fdl
