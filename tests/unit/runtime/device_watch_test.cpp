// Tests of DeviceWatch: when it queries the other ranks, how it judges the answers, and its texts. The clock is a
// number.
#include "runtime/device/device_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fdl {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kSecond = 1'000'000'000;

// Rank 0 of a group, with an update each second. World ranks are the group's ranks plus ten.
class Watched : public ::testing::Test {
 protected:
  void begin(int size, DeviceWatch::Limits limits) {
    std::vector<Member> members;
    for (int r = 0; r < size; ++r) members.push_back({10 + r, "host", std::string("host-") + char('a' + r % 26), 0});
    watch_.emplace("all comm 0", std::move(members), 0, limits);
    others_.assign(static_cast<std::size_t>(size), {42, true});
  }
  void warn_after(int seconds) { begin(3, {.warning_ns = seconds * kSecond}); }

  DeviceWatch::Actions update() {
    now_ += kSecond;
    DeviceWatch::Actions actions = watch_->update(
        work_, [](uint64_t number) { return "allreduce number " + std::to_string(number) + " on gpu"; }, now_);
    if (actions.query != 0) {
      ++queries_;
      for (std::size_t r = 1; r < others_.size(); ++r) {
        if (answers_) watch_->on_answer(10 + static_cast<int>(r), actions.query, others_[r]);
      }
    }
    return actions;
  }
  // The warnings within this many seconds.
  std::vector<std::string> look_for(int seconds) {
    std::vector<std::string> warnings;
    for (int i = 0; i < seconds; ++i) {
      const auto actions = update();
      EXPECT_TRUE(actions.failure.ok()) << actions.failure.text();
      if (!actions.warning.empty()) warnings.push_back(actions.warning);
    }
    return warnings;
  }
  Status look_until_it_fails(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      if (auto actions = update(); !actions.failure.ok()) return actions.failure;
    }
    return {};
  }

  std::optional<DeviceWatch> watch_;
  Communicator::DeviceWork work_{.in_flight = true, .begun = 42, .failure = {}};
  std::vector<DeviceWatch::Answer> others_;
  bool answers_ = true;
  int queries_ = 0;
  int64_t now_ = 100 * kSecond;
};

TEST_F(Watched, NamesALateRankWithItsLastCollective) {
  warn_after(12);
  others_[2] = {41, false};
  EXPECT_THAT(look_for(14),
              testing::ElementsAre("communicator 'all comm 0': allreduce number 42 on gpu has waited 12 s for rank 12 "
                                   "(host-c), which has begun 41 there: see what it does there"));
}

TEST_F(Watched, NamesTheCollectiveThatTheSlowestRankHasNotBegun) {
  warn_after(12);
  others_[1] = {40, false};
  others_[2] = {38, false};
  EXPECT_THAT(look_for(14).front(),
              HasSubstr("allreduce number 39 on gpu has waited 12 s for rank 11 (host-b), which "
                        "has begun 40 there; rank 12 (host-c), which has begun 38 there: see what "
                        "they do there"));
}

TEST_F(Watched, CountsManyLateRanks) {
  begin(20, {.warning_ns = 12 * kSecond});
  for (auto& other : others_) other = {41, false};
  const auto warnings = look_for(14);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings.front(), HasSubstr("rank 18 (host-i), which has begun 41 there; and 11 more: see what they do"));
}

TEST_F(Watched, NamesARankWithoutTheCommunicator) {
  warn_after(12);
  others_[1] = {-1, false};
  EXPECT_THAT(look_for(14).front(), HasSubstr("allreduce number 42 on gpu has waited 12 s for rank 11 (host-b), which "
                                              "has no such communicator (any more): see what it does"));
}

// Rank 1 has begun fewer collectives because its own device waits, so no rank is late.
TEST_F(Watched, RankThatWaitsOnItsDeviceIsNotLate) {
  warn_after(12);
  others_[1] = {40, true};
  EXPECT_THAT(look_for(14).front(),
              StartsWith("communicator 'all comm 0': allreduce number 40 on gpu, or what its stream has before it, has "
                         "not ended for 12 s, and all ranks have begun it"));
}

TEST_F(Watched, HostThatRunsAheadDoesNotHideALateRank) {
  warn_after(12);
  others_[2] = {41, false};
  std::vector<std::string> warnings;
  for (int i = 0; i < 14; ++i) {
    ++others_[1].begun;
    ++work_.begun;
    if (auto actions = update(); !actions.warning.empty()) warnings.push_back(actions.warning);
  }
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings.front(), HasSubstr("allreduce number 42 on gpu has waited 12 s for rank 12"));
}

TEST_F(Watched, WarningIntervalsDouble) {
  warn_after(12);
  others_[2] = {41, false};
  EXPECT_EQ(look_for(14).size(), 1u);  // after 12
  EXPECT_EQ(look_for(12).size(), 1u);  // after 24
  EXPECT_EQ(look_for(20).size(), 0u);
  EXPECT_EQ(look_for(6).size(), 1u);  // after 48
}

TEST_F(Watched, NoWarningWhileWorkMakesProgress) {
  warn_after(12);
  others_[2] = {41, false};
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(look_for(11).empty());
    ++work_.passed;
  }
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(look_for(11).empty());
    work_.by_host = !work_.by_host;  // the work alternates between host and device
  }
  work_.in_flight = false;
  EXPECT_TRUE(look_for(100).empty());
  work_.in_flight = true;
  EXPECT_TRUE(look_for(11).empty()) << "the earlier wait does not count";
}

TEST_F(Watched, RankThatContinuesCallingIsNotLate) {
  warn_after(12);
  others_[2] = {10, false};
  for (int i = 0; i < 30; ++i) {
    ++others_[2].begun;
    EXPECT_TRUE(look_for(1).empty());
  }
  others_[2] = {42, true};
  EXPECT_EQ(look_for(12).size(), 1u) << "now it is stuck";
}

TEST_F(Watched, WarnsOfHostWorkOnlyIfARankIsLate) {
  warn_after(12);
  work_.by_host = true;
  EXPECT_TRUE(look_for(60).empty()) << "a long collective";
  others_[1] = {41, false};
  EXPECT_FALSE(look_for(20).empty());
}

TEST_F(Watched, NoWarningWithoutAllAnswers) {
  warn_after(12);
  answers_ = false;
  EXPECT_TRUE(look_for(60).empty());
  EXPECT_GT(queries_, 5) << "queries go on";
}

TEST_F(Watched, IgnoresStaleAnswersAndAnswersOfNonMembers) {
  warn_after(12);
  answers_ = false;
  for (int i = 0; i < 60; ++i) {
    const auto actions = update();
    EXPECT_TRUE(actions.warning.empty());
    if (actions.query == 0) continue;
    watch_->on_answer(11, actions.query - 1, {41, false});
    watch_->on_answer(12, actions.query, {41, false});
    watch_->on_answer(99, actions.query, {41, false});
    watch_->on_answer(10, actions.query, {41, false});  // this rank itself
  }
}

TEST_F(Watched, SendsNoQueriesWithoutALimit) {
  begin(3, {});
  EXPECT_TRUE(look_for(100).empty());
  begin(1, {.warning_ns = kSecond, .shutdown_ns = kSecond});
  EXPECT_TRUE(look_for(100).empty());
  EXPECT_EQ(queries_, 0);
}

TEST_F(Watched, FailureNamesTheLateRankAsCulprit) {
  begin(3, {.warning_ns = 0, .shutdown_ns = 12 * kSecond});
  others_[2] = {41, false};
  const Status failure = look_until_it_fails(14);
  EXPECT_EQ(failure.code(), Code::timeout);
  EXPECT_EQ(failure.error().culprit_rank, 12);
  EXPECT_EQ(failure.error().culprit_host, "host-c");
  EXPECT_EQ(failure.text(),
            "allreduce number 42 on gpu has waited 12 s for rank 12 (host-c), which has begun 41 there: see what it "
            "does there (stall_shutdown_s)");
}

// Also if the answers come after both limits.
TEST_F(Watched, WarnsBeforeItFails) {
  begin(3, {.warning_ns = 6 * kSecond, .shutdown_ns = 12 * kSecond});
  others_[2] = {41, false};
  answers_ = false;
  EXPECT_TRUE(look_for(30).empty());
  answers_ = true;
  EXPECT_EQ(look_for(4).size(), 1u);
  EXPECT_EQ(look_until_it_fails(1).error().culprit_rank, 12);
}

TEST_F(Watched, FailureHasNoCulpritIfAllRanksHaveBegun) {
  begin(3, {.warning_ns = 6 * kSecond, .shutdown_ns = 12 * kSecond});
  EXPECT_EQ(look_for(10).size(), 1u);
  const Status failure = look_until_it_fails(4);
  EXPECT_EQ(failure.code(), Code::timeout);
  EXPECT_EQ(failure.error().culprit_rank, -1);
}

}  // namespace
}  // namespace fdl
