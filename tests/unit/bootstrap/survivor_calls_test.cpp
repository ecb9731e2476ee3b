// SurvivorCalls with a fake clock: when a rank that recovers calls the others, and what it sends.
#include "bootstrap/recovery/survivor_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fdl {
namespace {

using testing::Contains;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using Kind = SurvivorMessage::Kind;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kLostAfter = 10'000 * kMs;

Survivors::Options options_of(int me, std::set<int> gone = {}) {
  Survivors::Options options{.me = me, .members = {0, 1, 2}, .gone = std::move(gone), .timeout_ns = 30'000 * kMs};
  for (const int rank : options.members) options.names[rank] = "rank " + std::to_string(rank);
  return options;
}

// Rank 1 of three calls rank 0, which serves.
class SurvivorCallsTest : public testing::Test {
 protected:
  Survivors survivors_{options_of(1), 0};
  SurvivorCalls calls_{survivors_, 1, kLostAfter};
};

TEST_F(SurvivorCallsTest, ARankIsWantedWhetherOrNotMessagesWaitForIt) {
  EXPECT_EQ(calls_.next({0}).moment_ns(), 0) << "a rank that was never called may be called at once";
  ASSERT_THAT(calls_.wanted(), Contains(0));
  static_cast<void>(calls_.take_for(0));
  ASSERT_FALSE(calls_.has_unsent());
  EXPECT_THAT(calls_.wanted(), Contains(0)) << "the serving rank is called until it has decided";
}

TEST_F(SurvivorCallsTest, ARankThatMissedTheDecisionIsCalledToGetIt) {
  calls_.receive({.kind = Kind::decided, .from = 0, .to = 1, .round = 1, .members = {0, 1, 2}}, 0);
  calls_.receive({.kind = Kind::here, .from = 2, .to = 1, .round = 0, .members = {0, 1, 2}}, 0);
  ASSERT_THAT(survivors_.wanted(), Not(Contains(2)));
  EXPECT_THAT(calls_.wanted(), Contains(2));
  const auto sent = calls_.take_for(2);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent.front().kind, Kind::decided);
  EXPECT_THAT(calls_.wanted(), Not(Contains(2))) << "it has its answer";
}

TEST_F(SurvivorCallsTest, ARankIsCalledAgainAfterAPauseThatDoubles) {
  ASSERT_THAT(calls_.wanted(), Contains(0));
  ASSERT_TRUE(calls_.may_call(0, 0));
  int64_t now = 0;
  for (const int64_t pause : {10 * kMs, 20 * kMs, 40 * kMs}) {
    calls_.begin(0, now);
    EXPECT_EQ(calls_.failed(0, false, now), SurvivorCalls::Loss::none);
    EXPECT_FALSE(calls_.may_call(0, now + pause - 1));
    EXPECT_TRUE(calls_.may_call(0, now + pause));
    EXPECT_EQ(calls_.next({0}).moment_ns(), now + pause);
    now += pause;
  }
  for (int i = 0; i < 10; ++i) static_cast<void>(calls_.failed(0, false, now));
  EXPECT_EQ(calls_.next({0}).moment_ns(), now + 500 * kMs) << "the longest pause";
  EXPECT_THAT(calls_.connected(0), SizeIs(1));
  EXPECT_TRUE(calls_.may_call(0, now)) << "a connection ends the pause";
  static_cast<void>(calls_.failed(0, false, now));
  EXPECT_EQ(calls_.next({0}).moment_ns(), now + 10 * kMs);
}

TEST_F(SurvivorCallsTest, ARankThatRefusesHasEnded) {
  ASSERT_THAT(calls_.wanted(), Contains(0));
  ASSERT_TRUE(calls_.has_unsent());
  calls_.begin(0, 0);
  EXPECT_FALSE(calls_.has_refusals());
  EXPECT_EQ(calls_.failed(0, true, 0), SurvivorCalls::Loss::ended);
  EXPECT_TRUE(calls_.has_refusals());
  EXPECT_FALSE(survivors_.is_gone(0)) << "what has arrived from it counts first";
  calls_.report_refusals(0);
  EXPECT_TRUE(survivors_.is_gone(0));
  EXPECT_FALSE(calls_.has_refusals());
  EXPECT_THAT(calls_.take_for(0), IsEmpty());
}

TEST_F(SurvivorCallsTest, ARankThatCannotBeReachedForLongIsCutOff) {
  calls_.begin(0, 0);
  EXPECT_EQ(calls_.failed(0, false, kLostAfter - 1), SurvivorCalls::Loss::none);
  calls_.begin(0, kLostAfter);
  EXPECT_EQ(calls_.failed(0, false, kLostAfter), SurvivorCalls::Loss::cut_off);
  calls_.report_refusals(kLostAfter);
  EXPECT_TRUE(survivors_.is_gone(0));
}

TEST_F(SurvivorCallsTest, AConnectionBeginsTheTimeWithoutOneAnew) {
  calls_.begin(0, 0);
  static_cast<void>(calls_.connected(0));
  calls_.closed(0);
  EXPECT_TRUE(calls_.may_call(0, kLostAfter)) << "at once";
  calls_.begin(0, kLostAfter);
  EXPECT_EQ(calls_.failed(0, false, kLostAfter + kMs), SurvivorCalls::Loss::none);
}

TEST_F(SurvivorCallsTest, ARankThatIsGoneIsNotCalledAgain) {
  Survivors survivors(options_of(1, {0}), 0);
  SurvivorCalls calls(survivors, 1, kLostAfter);
  calls.begin(0, 0);
  static_cast<void>(calls.failed(0, false, 0));
  EXPECT_FALSE(calls.may_call(0, 1000 * kLostAfter));
  EXPECT_TRUE(calls.next({0}).is_never());
}

TEST_F(SurvivorCallsTest, MessagesWaitForAConnection) {
  survivors_.resume({}, 0);
  static_cast<void>(calls_.wanted());
  EXPECT_THAT(calls_.take_for(2), IsEmpty()) << "all are for the serving rank";
  EXPECT_TRUE(calls_.has_unsent());
  const auto sent = calls_.take_for(0);
  EXPECT_THAT(sent, Not(IsEmpty()));
  for (const SurvivorMessage& message : sent) EXPECT_EQ(message.to, 0);
  EXPECT_FALSE(calls_.has_unsent());
  EXPECT_THAT(calls_.take_for(0), IsEmpty()) << "each is sent once";
}

TEST(SurvivorCallsOfTheServingRank, SendTheAddressToEachMemberAgainOverEachNewConnection) {
  Survivors survivors(options_of(0, {1}), 0);
  SurvivorCalls calls(survivors, 0, kLostAfter);
  EXPECT_FALSE(calls.address().has_value());
  SurvivorMessage here{.kind = Kind::here, .from = 2, .to = 0, .members = {0, 1, 2}, .gone = {1}};
  calls.receive(here, 0);
  ASSERT_TRUE(survivors.has_decided());
  static_cast<void>(calls.wanted());
  static_cast<void>(calls.take_for(2));
  EXPECT_THAT(calls.connected(2), SizeIs(1)) << "only the decision, while the address is not known";
  calls.serve_at("host:1");
  EXPECT_EQ(calls.address(), "host:1");
  EXPECT_TRUE(calls.has_unsent());
  EXPECT_THAT(calls.take_for(1), IsEmpty()) << "it is gone";
  const auto sent = calls.take_for(2);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent.front().address, "host:1");
  EXPECT_FALSE(calls.has_unsent());
  const auto again = calls.connected(2);
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again.back().kind, Kind::address);
  EXPECT_EQ(again.back().address, "host:1");
}

TEST(SurvivorCallsOfAMember, KnowTheAddressOfTheRoundThatTheServingRankSends) {
  Survivors survivors(options_of(2, {1}), 0);
  SurvivorCalls calls(survivors, 2, kLostAfter);
  SurvivorMessage decided{.kind = Kind::decided, .from = 0, .to = 2, .round = 1, .members = {0, 2}};
  calls.receive(decided, 0);
  ASSERT_EQ(survivors.state(), Survivors::State::decided);
  SurvivorMessage address{.kind = Kind::address, .from = 0, .to = 2, .round = survivors.round() + 1};
  address.address = "of a later round";
  calls.receive(address, 0);
  EXPECT_FALSE(calls.address().has_value());
  address.round = survivors.round();
  address.address = "host:1";
  calls.receive(address, 0);
  EXPECT_EQ(calls.address(), "host:1");
}

}  // namespace
}  // namespace fdl
