// Tests of CoordinatorRounds with connections and a clock of the test.
#include "bootstrap/coordinator/coordinator_rounds.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "bootstrap/topology/location.h"

namespace fdl {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using End = CoordinatorRounds::End;
using Kind = CoordinatorMessage::Kind;
using Peer = CoordinatorRounds::Peer;

constexpr int64_t kSecond = 1'000'000'000;

// Notes what happens to the connections, as "queue 16 welcome", "flush 16" and "close 16".
class CoordinatorRoundsTest : public ::testing::Test, protected CoordinatorRounds::Connections {
 protected:
  CoordinatorRoundsTest() : rounds_(options(), "here", {}, *this) {}
  static CoordinatorOptions options() {
    CoordinatorOptions options;
    options.size = 2;
    options.lost_after_s = 3;
    return options;
  }
  Peer add(int64_t now = 0) {
    const Peer peer = rounds_.add(false, now);
    open_.insert(peer);
    return peer;
  }
  void receive(Peer peer, std::vector<CoordinatorMessage> messages, End end = End::none, int64_t now = 0) {
    rounds_.receive(peer, std::move(messages), end, now);
  }
  static CoordinatorMessage hello_of(int rank) {
    CoordinatorMessage hello{.kind = Kind::hello};
    hello.members.push_back({rank, 2, "h", "boot", 100 + rank});
    return hello;
  }
  // Both ranks are members; what was done for that is forgotten.
  void all_arrive() {
    for (int rank = 0; rank < 2; ++rank) {
      ranks_.push_back(add());
      receive(ranks_.back(), {hello_of(rank)});
    }
    rounds_.finish(0);
    done_.clear();
  }

  void queue(Peer peer, const SharedMessage& message) override {
    done_.push_back(fmt::format("queue {} {}", peer, static_cast<int>(decode(message->bytes())->kind)));
  }
  void flush(Peer peer) override {
    done_.push_back(fmt::format("flush {}", peer));
    if (breaks_ == peer) close(peer);
  }
  void close(Peer peer) override {
    if (open_.erase(peer) == 0) return;
    done_.push_back(fmt::format("close {}", peer));
    rounds_.closed(peer);
  }
  bool is_silent(Peer peer) const override { return silent_.contains(peer); }
  void note_own(const CoordinatorMessage& message) override { own_.push_back(message.kind); }
  std::string queued(Peer peer, Kind kind) const { return fmt::format("queue {} {}", peer, static_cast<int>(kind)); }

  std::set<Peer> open_;
  std::set<Peer> silent_;
  Peer breaks_ = 0;  // the connection of which flush() finds that it must be closed
  std::vector<Peer> ranks_;
  std::vector<std::string> done_;
  std::vector<Kind> own_;
  CoordinatorRounds rounds_;
};

TEST_F(CoordinatorRoundsTest, AStrangerIsDroppedAfterFiveSeconds) {
  const Peer stranger = add(kSecond);
  EXPECT_EQ(rounds_.next().moment_ns(), 6 * kSecond);
  rounds_.finish(6 * kSecond - 1);
  EXPECT_THAT(open_, Contains(stranger));
  rounds_.finish(6 * kSecond);
  EXPECT_THAT(open_, IsEmpty());
  EXPECT_EQ(rounds_.strangers(), 1);
}

TEST_F(CoordinatorRoundsTest, AMemberIsNotDropped) {
  all_arrive();
  rounds_.finish(6 * kSecond);
  EXPECT_THAT(open_, SizeIs(2));
  EXPECT_EQ(rounds_.strangers(), 0);
}

TEST_F(CoordinatorRoundsTest, OfTooManyStrangersTheOneThatIsSilentForLongestIsDropped) {
  std::vector<Peer> strangers;
  for (int i = 0; i < 130; ++i) strangers.push_back(add());  // 128, and the two ranks that have not arrived
  EXPECT_THAT(done_, IsEmpty());
  silent_ = {strangers[5], strangers[9]};
  add();
  EXPECT_THAT(done_, ElementsAre(fmt::format("close {}", strangers[5])));
  silent_.clear();
  add();
  EXPECT_EQ(done_.back(), fmt::format("close {}", strangers[0])) << "none is silent: the oldest";
}

TEST_F(CoordinatorRoundsTest, AShortageFailsTheStartUnlessStrangersMayGiveBackEnough) {
  const Status none_left(Code::resource, "accept: no descriptor");
  rounds_.note_shortage(none_left);
  const Peer zero = add();
  CoordinatorMessage wait{.kind = Kind::wait, .number = 60 * kSecond};
  receive(zero, {hello_of(0), wait});
  const Peer stranger = add();
  rounds_.finish(0);
  rounds_.note_shortage(none_left);
  rounds_.finish(1);
  EXPECT_THAT(done_, Not(Contains(queued(zero, Kind::reply)))) << "the stranger may be rank 1";
  close(stranger);
  rounds_.note_shortage(none_left);
  rounds_.finish(2);
  EXPECT_THAT(done_, Contains(queued(zero, Kind::reply)));
  const Peer one = add();
  receive(one, {hello_of(1)});
  rounds_.finish(3);
  EXPECT_THAT(done_, Contains(queued(one, Kind::refused)));
}

TEST_F(CoordinatorRoundsTest, WhatComesBeforeAHelloIsRefused) {
  const Peer peer = add();
  receive(peer, {CoordinatorMessage{.kind = Kind::leave}, hello_of(0)});
  EXPECT_THAT(open_, IsEmpty());
  EXPECT_EQ(rounds_.strangers(), 1);
  EXPECT_EQ(rounds_.membership().absent_ranks(), 2u);
}

TEST_F(CoordinatorRoundsTest, ASecondHelloIsRefused) {
  all_arrive();
  receive(ranks_[1], {hello_of(1)});
  EXPECT_THAT(open_, ElementsAre(ranks_[0]));
}

TEST_F(CoordinatorRoundsTest, AHelloWithTooLongNamesIsRefused) {
  for (int field = 0; field < 5; ++field) {
    CoordinatorMessage hello = hello_of(0);
    CoordinatorClient::Hello& member = hello.members.front();
    if (field == 0) member.host_name.assign(kMostName + 1, 'h');
    if (field == 1) member.boot_id.assign(kMostName + 1, 'b');
    if (field == 2) member.recovery.assign(kMostKey + 1, 'r');
    if (field == 3) member.salt.assign(kMostName + 1, 's');
    if (field == 4) member.location.assign(kMostLocation + 1, 'l');
    const Peer peer = add();
    receive(peer, {hello});
    EXPECT_THAT(open_, IsEmpty()) << field;
  }
}

TEST_F(CoordinatorRoundsTest, AClientThatHasNotProvedTheKeyMayOnlyQuery) {
  const Peer peer = rounds_.add(true, 0);
  open_.insert(peer);
  receive(peer, {CoordinatorMessage{.kind = Kind::job_query}});
  EXPECT_THAT(open_, Contains(peer));
  receive(peer, {hello_of(0)});
  EXPECT_THAT(open_, IsEmpty());
  EXPECT_EQ(rounds_.membership().absent_ranks(), 2u);
}

TEST_F(CoordinatorRoundsTest, TheEndOfARankIsConfirmedToItsLauncher) {
  CoordinatorMessage ended{.kind = Kind::rank_ended, .rank = 1};
  ended.why = Status(Code::peer_lost, "rank 1 ended");
  const Peer launcher = add();
  receive(launcher, {ended});
  rounds_.finish(0);
  EXPECT_THAT(done_, Contains(queued(launcher, Kind::job_reply)));
  EXPECT_THAT(open_, Contains(launcher));
  // One that has not proved the key may not say so, and neither may anyone of a rank that there is not.
  const Peer stranger = rounds_.add(true, 0);
  open_.insert(stranger);
  receive(stranger, {ended});
  EXPECT_THAT(open_, Not(Contains(stranger)));
  ended.rank = 9;
  receive(launcher, {ended});
  EXPECT_THAT(open_, Not(Contains(launcher)));
}

TEST_F(CoordinatorRoundsTest, MessagesCountBeforeTheEndOfTheirConnection) {
  all_arrive();
  receive(ranks_[1], {CoordinatorMessage{.kind = Kind::leave}}, End::closed);
  rounds_.finish(2 * kSecond);
  EXPECT_THAT(done_, Contains(queued(ranks_[0], Kind::left)));
  EXPECT_THAT(done_, Not(Contains(queued(ranks_[0], Kind::lost))));
}

TEST_F(CoordinatorRoundsTest, AllMessagesToAConnectionLeaveAtOnceAndNoneAfterItsEnd) {
  all_arrive();
  CoordinatorMessage probe{.kind = Kind::probe};
  probe.ranks = {1};
  receive(ranks_[0], {probe});
  receive(ranks_[1], {probe}, End::broken);
  rounds_.finish(0);
  EXPECT_EQ(std::ranges::count(done_, fmt::format("flush {}", ranks_[0])), 1);
  EXPECT_THAT(done_, Contains(queued(ranks_[0], Kind::lost)));
  const auto closed = std::ranges::find(done_, fmt::format("close {}", ranks_[1]));
  EXPECT_EQ(std::find(closed, done_.end(), fmt::format("flush {}", ranks_[1])), done_.end());
}

TEST_F(CoordinatorRoundsTest, AConnectionThatBreaksWhileItIsWrittenIsNewsForTheOthersInTheSameRound) {
  all_arrive();
  breaks_ = ranks_[1];
  CoordinatorMessage probe{.kind = Kind::probe};
  probe.ranks = {1};
  receive(ranks_[0], {probe});
  rounds_.finish(0);
  EXPECT_THAT(open_, ElementsAre(ranks_[0]));
  EXPECT_THAT(done_, Contains(queued(ranks_[0], Kind::lost)));
}

TEST_F(CoordinatorRoundsTest, ARefusalLeavesBeforeItsConnectionIsClosed) {
  all_arrive();
  done_.clear();
  const Peer peer = add();
  receive(peer, {hello_of(1)});
  rounds_.finish(0);
  EXPECT_THAT(done_,
              ElementsAre(queued(peer, Kind::refused), fmt::format("flush {}", peer), fmt::format("close {}", peer)));
}

TEST_F(CoordinatorRoundsTest, TheAnswerToTheOwnQueryGoesToTheProcessItself) {
  rounds_.query_states(0);
  rounds_.finish(0);
  EXPECT_THAT(own_, Contains(Kind::job_reply));
}

TEST_F(CoordinatorRoundsTest, TheEndIsAnnouncedToAllMembers) {
  all_arrive();
  rounds_.end();
  for (const Peer peer : ranks_) EXPECT_THAT(done_, Contains(queued(peer, Kind::coordinator_ends)));
  EXPECT_FALSE(rounds_.membership().all_know_of_end());
}

}  // namespace
}  // namespace fdl
