// Tests of GroupFailure: the first report and the first final failure count, and a departed peer is no failure.
#include "runtime/named/group_failure.h"

#include <thread>

#include "tests/support/ranks.h"

namespace fdl {
namespace {

Config config_with(const std::string& lost_after_s, const std::string& suspect_after_s) {
  return test::require(
      Config::read(Environment({}), {{"lost_after_s", lost_after_s}, {"suspect_after_s", suspect_after_s}}));
}

class GroupFailureTest : public testing::Test {
 protected:
  const Config config_ = config_with("3600", "3600");
  GroupFailure failure_{config_, 3600};
};

const Status kFirst(Code::transport, "first");
const Status kSecond(Code::transport, "second");

TEST_F(GroupFailureTest, FirstReportIsReturnedOnceAndStopsBuckets) {
  EXPECT_TRUE(failure_.none());
  EXPECT_TRUE(failure_.take_report().ok());
  failure_.report(kFirst);
  failure_.report(kSecond);
  EXPECT_FALSE(failure_.none());
  EXPECT_TRUE(failure_.failure().ok());
  EXPECT_EQ(failure_.take_report().text(), "first");
  EXPECT_TRUE(failure_.take_report().ok());
  EXPECT_EQ(failure_.reported().text(), "first");
}

TEST_F(GroupFailureTest, DecisionIsDueOnlyAfterAReport) {
  EXPECT_EQ(failure_.next_alarm_ns(), Deadline::never().moment_ns());
  EXPECT_FALSE(failure_.decision_is_overdue());
  const int64_t before = now_ns();
  failure_.report(kFirst);
  // The coordinator may be silent, and the reported rank after it.
  EXPECT_GE(failure_.next_alarm_ns(), before + seconds_to_ns(3 * 3600));
  EXPECT_LE(failure_.next_alarm_ns(), now_ns() + seconds_to_ns(4 * 3600));
  EXPECT_FALSE(failure_.decision_is_overdue());
}

TEST_F(GroupFailureTest, FirstFinalFailureStays) {
  EXPECT_TRUE(failure_.fail(kFirst));
  EXPECT_FALSE(failure_.fail(kSecond));
  EXPECT_EQ(failure_.failure().text(), "first");
  EXPECT_FALSE(failure_.none());
  EXPECT_TRUE(failure_.take_report().ok()) << "a final failure is not reported";
}

TEST_F(GroupFailureTest, StrandedEntriesAreTakenOnce) {
  Entries entries(3);
  entries[0].emplace().request.name = "a";
  entries[2].emplace().request.name = "c";
  failure_.strand(entries);
  EXPECT_TRUE(failure_.has_stranded());
  const std::vector<Entry> taken = failure_.take_stranded();
  ASSERT_EQ(taken.size(), 2u) << "an entry that this rank does not have is not stranded";
  EXPECT_EQ(taken[0].request.name, "a");
  EXPECT_EQ(taken[1].request.name, "c");
  EXPECT_FALSE(failure_.has_stranded());
}

TEST_F(GroupFailureTest, NoReportWaitsForADecisionAfterTheLastOne) {
  failure_.decisions_end();
  EXPECT_FALSE(failure_.decision_is_overdue()) << "nothing is reported";
  EXPECT_TRUE(failure_.none());
  failure_.report(kFirst);
  EXPECT_TRUE(failure_.decision_is_overdue());
  GroupFailure reported(config_, 3600);
  reported.report(kFirst);
  EXPECT_FALSE(reported.decision_is_overdue());
  reported.decisions_end();
  EXPECT_TRUE(reported.decision_is_overdue());
  EXPECT_LE(reported.next_alarm_ns(), now_ns());
}

TEST_F(GroupFailureTest, NoEndOfAPeerWaitsForNewsAfterTheLastOnes) {
  failure_.peer_is_gone(1, kFirst);
  ASSERT_EQ(failure_.unexplained_end(false), nullptr);
  failure_.decisions_end();
  ASSERT_NE(failure_.unexplained_end(false), nullptr);
  EXPECT_EQ(failure_.unexplained_end(false)->text(), "first");
  failure_.rank_departs(1, kSecond);
  failure_.peer_is_gone(2, kSecond);
  ASSERT_NE(failure_.unexplained_end(false), nullptr);
  EXPECT_EQ(failure_.unexplained_end(false)->text(), "second");
}

// Buckets that run may still finish, also without news.
TEST_F(GroupFailureTest, WhileBucketsRunAnEndIsUnexplainedLater) {
  failure_.decisions_end();
  const int64_t before = now_ns();
  failure_.peer_is_gone(1, kFirst);
  EXPECT_EQ(failure_.unexplained_end(true), nullptr);
  EXPECT_NE(failure_.unexplained_end(false), nullptr);
  EXPECT_GE(failure_.explanation_due_ns(true), before + seconds_to_ns(7200));
  const Config soon = config_with("0.01", "3600");
  GroupFailure late(soon, 0.01);
  late.peer_is_gone(1, kSecond);
  const int64_t due = late.explanation_due_ns(true);
  while (now_ns() < due) std::this_thread::yield();
  ASSERT_NE(late.unexplained_end(true), nullptr);
  EXPECT_EQ(late.unexplained_end(true)->text(), "second");
}

TEST_F(GroupFailureTest, SourceOfPlansHasDepartedOnceTheyHaveEnded) {
  failure_.rank_departs(0, kFirst);
  failure_.source_departs();
  failure_.peer_is_gone(1, kSecond);
  EXPECT_FALSE(failure_.source_has_departed()) << "another peer than the source may be gone";
  failure_.plans_end(false);
  EXPECT_TRUE(failure_.source_has_departed());
  EXPECT_EQ(failure_.departure().text(), "first");
  EXPECT_TRUE(failure_.none()) << "operations decide whether the end of a peer's messages is a failure";
}

TEST_F(GroupFailureTest, PlansThatEndWithoutADepartureAreNoFailure) {
  failure_.plans_end(false);
  EXPECT_TRUE(failure_.plans_have_ended());
  EXPECT_FALSE(failure_.source_has_departed());
}

TEST_F(GroupFailureTest, TheFirstEndOfThePlansSaysWhetherAllCame) {
  EXPECT_FALSE(failure_.all_plans_came());
  failure_.plans_end(true);
  failure_.plans_end(false);  // the connection ends later
  EXPECT_TRUE(failure_.all_plans_came());
  GroupFailure behind_a_lost_relay(config_, 0);
  behind_a_lost_relay.plans_end(false);
  behind_a_lost_relay.plans_end(true);
  EXPECT_FALSE(behind_a_lost_relay.all_plans_came());
}

TEST_F(GroupFailureTest, TheFirstDepartureIsTheReasonAlsoWhereTheSourceDepartsLater) {
  failure_.plans_end(false);
  failure_.rank_departs(1, kFirst);
  EXPECT_FALSE(failure_.source_has_departed());
  failure_.rank_departs(0, kSecond);
  failure_.source_departs();
  EXPECT_TRUE(failure_.source_has_departed());
  EXPECT_EQ(failure_.departure().text(), "first");
}

TEST_F(GroupFailureTest, TheEndOfAPeerIsUnexplainedOnceTheNewsAreOverdue) {
  EXPECT_EQ(failure_.explanation_due_ns(false), Deadline::never().moment_ns());
  const int64_t before = now_ns();
  failure_.peer_is_gone(1, kFirst);
  EXPECT_GE(failure_.explanation_due_ns(false), before + seconds_to_ns(3600));
  EXPECT_EQ(failure_.unexplained_end(false), nullptr);
  GroupFailure overdue(config_, 0);
  overdue.peer_is_gone(1, kFirst);
  overdue.peer_is_gone(2, kSecond);
  ASSERT_NE(overdue.unexplained_end(false), nullptr);
  EXPECT_EQ(overdue.unexplained_end(false)->text(), "first");
  overdue.rank_departs(1, kSecond);
  ASSERT_NE(overdue.unexplained_end(false), nullptr);
  EXPECT_EQ(overdue.unexplained_end(false)->text(), "second");
  overdue.rank_departs(2, kSecond);
  EXPECT_EQ(overdue.unexplained_end(false), nullptr);
}

TEST_F(GroupFailureTest, ADepartureThatIsKnownExplainsTheEnd) {
  failure_.rank_departs(1, kSecond);
  failure_.peer_is_gone(1, kFirst);
  EXPECT_EQ(failure_.explanation_due_ns(false), Deadline::never().moment_ns());
}

}  // namespace
}  // namespace fdl
