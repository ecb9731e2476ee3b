// Tests of RelaySession: what it merges, the order that it keeps, and what it rejects; and of the root that receives
// it.
#include "agree/session/relay_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "agree/session/session.h"
#include "tests/support/agree_requests.h"

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Width 1: 0 <- 1 <- 2 <- 3 <- 4.
const std::vector<int> kOneHost(5, 0);
// Width 2, one rank a host: 0 <- 1, 2; 1 <- 3, 4; 2 <- 5.
const std::vector<int> kSixHosts{0, 1, 2, 3, 4, 5};

std::vector<std::byte> message(std::string_view text) {
  const ConstBytes bytes = bytes_of(text);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> relayed(std::vector<RelayMessage::Entry> entries) {
  return encode(RelayMessage{.entries = std::move(entries)});
}

class Relays : public testing::Test {
 protected:
  std::vector<RelayMessage::Entry> Taken() {
    const auto bytes = relay_.take();
    if (!bytes) return {};
    return test_message(*bytes);
  }
  static std::vector<RelayMessage::Entry> test_message(ConstBytes bytes) {
    auto back = decode_relayed(bytes);
    EXPECT_TRUE(back.ok()) << back.status().text();
    return back.ok() ? back->entries : std::vector<RelayMessage::Entry>();
  }

  const AgreementTree tree_{1, kSixHosts, 2};
  RelaySession relay_{tree_};
};

TEST_F(Relays, EqualMessagesTravelOnce) {
  relay_.add(message("step"));
  ASSERT_TRUE(relay_.receive(4, message("step")).ok());
  ASSERT_TRUE(relay_.receive(3, message("step")).ok());
  EXPECT_THAT(Taken(), ElementsAre(RelayMessage::Entry{{{1, 1}, {3, 2}}, message("step")}));
  EXPECT_FALSE(relay_.take().has_value());
}

TEST_F(Relays, DifferentMessagesTravelSideBySide) {
  ASSERT_TRUE(relay_.receive(3, message("a")).ok());
  ASSERT_TRUE(relay_.receive(4, message("b")).ok());
  relay_.add(message("a"));
  EXPECT_THAT(Taken(), ElementsAre(RelayMessage::Entry{{{1, 1}, {3, 1}}, message("a")},
                                   RelayMessage::Entry{{{4, 1}}, message("b")}));
}

// Rank 3 writes b, then a. Its a must not join the a of rank 4, which is in front of b.
TEST_F(Relays, MessagesOfARankKeepTheirOrder) {
  ASSERT_TRUE(relay_.receive(4, message("a")).ok());
  ASSERT_TRUE(relay_.receive(3, message("b")).ok());
  ASSERT_TRUE(relay_.receive(3, message("a")).ok());
  ASSERT_TRUE(relay_.receive(4, message("a")).ok());
  EXPECT_THAT(Taken(),
              ElementsAre(RelayMessage::Entry{{{4, 1}}, message("a")}, RelayMessage::Entry{{{3, 1}}, message("b")},
                          RelayMessage::Entry{{{3, 2}}, message("a")}));
}

TEST_F(Relays, TheSameMessageTwiceStaysTwoMessages) {
  relay_.add(message("a"));
  relay_.add(message("a"));
  EXPECT_THAT(Taken(),
              ElementsAre(RelayMessage::Entry{{{1, 1}}, message("a")}, RelayMessage::Entry{{{1, 1}}, message("a")}));
}

TEST_F(Relays, MergeWhatOtherRelaysHaveMerged) {
  const AgreementTree tree(1, kOneHost, 1);
  RelaySession relay(tree);
  relay.add(message("step"));
  ASSERT_TRUE(relay.receive(2, relayed({{{{2, 3}}, message("step")}, {{{4, 1}}, message("more")}})).ok());
  const auto bytes = relay.take();
  ASSERT_TRUE(bytes.has_value());
  EXPECT_THAT(test_message(*bytes), ElementsAre(RelayMessage::Entry{{{1, 4}}, message("step")},
                                                RelayMessage::Entry{{{4, 1}}, message("more")}));
}

TEST_F(Relays, LargeCollectionTakesSeveralMessagesInOrder) {
  const std::vector<std::byte> large(700'000, std::byte{1});
  std::vector<std::byte> other = large;
  other.back() = std::byte{2};
  for (const auto& bytes : {large, other, large, other}) ASSERT_TRUE(relay_.receive(3, bytes).ok());
  EXPECT_THAT(Taken(), ElementsAre(RelayMessage::Entry{{{3, 1}}, large}, RelayMessage::Entry{{{3, 1}}, other}));
  ASSERT_TRUE(relay_.receive(4, other).ok()) << "it joins a message that has not been taken";
  EXPECT_THAT(Taken(), ElementsAre(RelayMessage::Entry{{{3, 1}}, large}, RelayMessage::Entry{{{3, 2}}, other}));
  EXPECT_FALSE(relay_.take().has_value());
}

TEST_F(Relays, ManyDifferentMessagesAllArrive) {
  for (int number = 0; number < 1000; ++number) {
    for (const int child : {3, 4}) ASSERT_TRUE(relay_.receive(child, message(std::to_string(number))).ok());
  }
  std::vector<int> next(6, 0);
  while (const auto bytes = relay_.take()) {
    for (const auto& entry : test_message(*bytes)) {
      visit_ranks(entry, [&](int rank) {
        EXPECT_EQ(text_of(entry.message), std::to_string(next[static_cast<std::size_t>(rank)]++));
      });
    }
  }
  EXPECT_THAT(next, ElementsAre(0, 0, 0, 1000, 1000, 0));
}

TEST_F(Relays, RejectMessagesOfRanksThatAreNotBelowTheSender) {
  const AgreementTree tree(0, kSixHosts, 2);
  for (const RankRange range : {RankRange{0, 1}, RankRange{2, 1}, RankRange{5, 1}, RankRange{3, 3}, RankRange{6, 1}}) {
    const auto rejected = decode_from(tree, 1, relayed({{{{1, 1}}, message("a")}, {{range}, message("b")}}));
    ASSERT_FALSE(rejected.ok()) << range.first;
    EXPECT_THAT(rejected.status().text(), HasSubstr("malformed control message: it has a message of rank"));
  }
  EXPECT_TRUE(decode_from(tree, 1, relayed({{{{1, 1}, {3, 2}}, message("a")}})).ok());
  const AgreementTree chain(1, kOneHost, 1);
  RelaySession inner(chain);
  EXPECT_THAT(inner.receive(2, message("no relayed message")).text(), HasSubstr("malformed control message"));
  EXPECT_FALSE(inner.take().has_value());
}

// ---- The root ----

class RootOfRelays : public testing::Test {
 protected:
  RootOfRelays() : root_(options_for(6), 8) {
    for (int rank = 0; rank < 6; ++rank) members_.emplace_back(8);
  }
  std::vector<std::byte> Write(std::size_t rank, const Request& request) {
    return members_[rank].encode_requests({request});
  }

  const AgreementTree tree_{0, kSixHosts, 2};
  RootSession root_;
  std::deque<MemberSession> members_;
};

TEST_F(RootOfRelays, TakesEachMessageForEachOfItsRanks) {
  ASSERT_TRUE(root_.receive(0, Write(0, allreduce("a")), 0).ok());
  EXPECT_FALSE(root_.receive_relayed(tree_, 1, relayed({{{{1, 1}, {3, 2}}, Write(1, allreduce("a"))}}), 0));
  EXPECT_FALSE(root_.decide(0).has_value()) << "2 and 5 are missing";
  EXPECT_THAT(root_.waiting(1, 0).front().missing, ElementsAre(2, 5));
  EXPECT_FALSE(root_.receive_relayed(
      tree_, 2, relayed({{{{2, 1}}, Write(2, allreduce("a"))}, {{{5, 1}}, Write(5, allreduce("a", Dtype::int8))}}), 0));
  const auto plan = root_.decide(0);
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(members_[0].decode_plan(*plan)->error("a"), HasSubstr("rank 5 (host-f) has int8"));
}

TEST_F(RootOfRelays, NamesTheSenderOfARejectedMessage) {
  const auto twice = root_.receive_relayed(
      tree_, 1, relayed({{{{1, 1}, {3, 1}}, Write(1, allreduce("a"))}, {{{3, 1}}, Write(3, allreduce("a"))}}), 0);
  ASSERT_TRUE(twice.has_value());
  EXPECT_EQ(twice->rank, 3);
  EXPECT_THAT(twice->why.text(), HasSubstr("rank 3 (host-d): it submits 'a' twice"));
  const auto damaged = root_.receive_relayed(tree_, 1, relayed({{{{4, 1}}, message("?")}}), 0);
  ASSERT_TRUE(damaged.has_value());
  EXPECT_EQ(damaged->rank, 4);
  EXPECT_THAT(damaged->why.text(), HasSubstr("rank 4 (host-e): malformed control message"));
  const auto foreign = root_.receive_relayed(tree_, 1, relayed({{{{5, 1}}, Write(5, allreduce("b"))}}), 0);
  ASSERT_TRUE(foreign.has_value());
  EXPECT_EQ(foreign->rank, 1) << "rank 1 has relayed it, and rank 5 does not send through it";
  EXPECT_THAT(foreign->why.text(), HasSubstr("rank 1 (host-b): malformed control message: it has a message of rank 5"));
}

TEST_F(RootOfRelays, DropsMessagesOfRanksThatHaveLeft) {
  root_.leave(3, "done");
  EXPECT_FALSE(root_.receive_relayed(tree_, 1, relayed({{{{1, 1}, {3, 2}}, Write(1, allreduce("a"))}}), 0));
  const auto plan = root_.decide(0);
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(members_[1].decode_plan(*plan)->error("a"), HasSubstr("rank 3 (host-d) has shut down: done"));
}

}  // namespace
}  // namespace fdl
