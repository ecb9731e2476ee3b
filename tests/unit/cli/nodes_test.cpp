// Nodes is tested as a state machine: which pods belong to an elastic job, which wait or are refused, and timeouts.
#include "cli/elastic/nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Order = Nodes::Order;

constexpr int64_t kSecond = 1'000'000'000;

Nodes::Node pod(int number, const std::string& name, int slots = 2) {
  return {.number = number, .slots = slots, .pod = name + "-x", .node = "n", .host = name, .process_id = 7};
}

// Orders and events as words: "welcome 5 as 1", "came 1".
class Job : public Nodes {
 public:
  explicit Job(const Limits& limits) : Nodes(limits, pod(0, "train-0"), 0) {}
  std::vector<std::string> orders() {
    std::vector<std::string> words;
    for (const Order& order : take_orders()) {
      const std::string peer = std::to_string(order.peer);
      switch (order.kind) {
        case Order::Kind::welcome:
          words.push_back("welcome " + peer + " as " + std::to_string(order.number));
          break;
        case Order::Kind::wait:
          words.push_back("wait " + peer);
          break;
        case Order::Kind::refuse:
          words.push_back("refuse " + peer);
          refusal = order.text;
          break;
        case Order::Kind::query:
          words.push_back("query " + peer);
          break;
        case Order::Kind::hang_up:
          words.push_back("hang up " + peer);
          break;
      }
    }
    return words;
  }
  std::vector<std::string> events() {
    std::vector<std::string> words;
    for (const Event& event : take_events()) {
      const std::string name = event.kind == Event::Kind::came     ? "came "
                               : event.kind == Event::Kind::leaves ? "leaves "
                               : event.was_leaving                 ? "left "
                                                                   : "lost ";
      words.push_back(name + std::to_string(event.number));
    }
    return words;
  }
  void all_arrive() {
    for (int number = 1; number < 3; ++number) {
      arrive(static_cast<Peer>(number), pod(number, "train-" + std::to_string(number)), 0);
    }
    take_orders();
    take_events();
    began(0);
  }
  std::string refusal;
};

// ---- Arrivals ----

TEST(Nodes, BeginsAfterTheArrivalPeriodOrWhenAllHaveArrived) {
  Job job({.fewest = 2, .most = 3, .arrival_period_s = 1});
  EXPECT_FALSE(job.are_ready());
  job.arrive(1, pod(1, "train-1"), 10 * kSecond);
  EXPECT_THAT(job.orders(), ElementsAre("welcome 1 as 1"));
  EXPECT_THAT(job.events(), ElementsAre("came 1"));
  EXPECT_FALSE(job.are_ready());
  EXPECT_EQ(job.next().moment_ns(), 11 * kSecond);
  job.tick(11 * kSecond);
  EXPECT_TRUE(job.are_ready());
  EXPECT_TRUE(job.next().is_never());  // no timer is left
  Job whole({.fewest = 2, .most = 2});
  whole.arrive(1, pod(1, "train-1"), 0);
  EXPECT_TRUE(whole.are_ready());
}

TEST(Nodes, AcceptsALateNodeWhileTheJobRuns) {
  Job job({.fewest = 2, .most = 3, .arrival_period_s = 1});
  job.arrive(1, pod(1, "train-1"), 0);
  job.tick(kSecond);
  job.began(0);
  job.orders();
  job.arrive(2, pod(2, "train-2"), 50 * kSecond);
  EXPECT_THAT(job.orders(), ElementsAre("welcome 2 as 2"));
  EXPECT_TRUE(job.are_ready());
  EXPECT_EQ(job.here(), 3);
}

TEST(Nodes, NumbersNodesInOrderOfArrivalAndLetsTheRestWait) {
  Job job({.fewest = 1, .most = 3});
  job.arrive(10, pod(-1, "web-x"), 0);
  job.arrive(11, pod(-1, "web-y"), 0);
  job.arrive(12, pod(-1, "web-z"), 0);
  EXPECT_THAT(job.orders(), ElementsAre("welcome 10 as 1", "welcome 11 as 2", "wait 12"));
  job.closed(10, 0);
  EXPECT_THAT(job.orders(), ElementsAre("welcome 12 as 1"));
  EXPECT_THAT(job.events(), ElementsAre("came 1", "came 2", "lost 1", "came 1"));
}

TEST(Nodes, RefusesANumberAboveTheLimit) {
  Job job({.fewest = 1, .most = 2});
  job.arrive(1, pod(2, "train-2"), 0);
  EXPECT_THAT(job.orders(), ElementsAre("refuse 1"));
  EXPECT_THAT(job.refusal, HasSubstr("claims to be node 2, but the job has at most 2"));
}

// ---- Two nodes with one number ----

TEST(Nodes, RefusesASecondNodeWithTheNumberOfALiveOne) {
  Job job({.fewest = 2, .most = 3});
  job.all_arrive();
  job.arrive(9, pod(1, "other-1"), 5 * kSecond);
  EXPECT_THAT(job.orders(), ElementsAre("query 1"));
  job.answered(1, 5 * kSecond);
  EXPECT_THAT(job.orders(), ElementsAre("refuse 9"));
  EXPECT_THAT(job.refusal,
              HasSubstr("two nodes claim to be node 1: pod train-1-x (node n) (process 7 on train-1), which was "
                        "first, and"));
  EXPECT_THAT(job.events(), IsEmpty());
  EXPECT_TRUE(job.next().is_never());
}

TEST(Nodes, RefusesASecondNode0) {
  Job job({.fewest = 1, .most = 2});
  job.arrive(4, pod(0, "other-0"), 0);
  EXPECT_THAT(job.orders(), ElementsAre("refuse 4"));
}

TEST(Nodes, AReplacementPodGetsTheNumberOfASilentOne) {
  Job job({.fewest = 2, .most = 3, .lost_after_s = 1});
  job.all_arrive();
  job.arrive(9, pod(1, "train-1-new"), 5 * kSecond);
  job.orders();
  job.tick(6 * kSecond - 1);
  EXPECT_THAT(job.orders(), IsEmpty());
  job.tick(6 * kSecond);
  EXPECT_THAT(job.orders(), ElementsAre("hang up 1", "welcome 9 as 1"));
  EXPECT_THAT(job.events(), ElementsAre("lost 1", "came 1"));
  job.closed(1, 7 * kSecond);  // the old connection closes late
  EXPECT_EQ(job.here(), 3);
  EXPECT_EQ(job.number_of(9), 1);
}

TEST(Nodes, AReplacementPodWaitsForOneThatLeaves) {
  Job job({.fewest = 1, .most = 3});
  job.all_arrive();
  job.leave(2, 0);
  job.leave(2, 0);
  job.arrive(9, pod(2, "train-2-new"), 0);
  EXPECT_THAT(job.orders(), ElementsAre("wait 9"));
  EXPECT_EQ(job.here(), 2);
  job.closed(2, 0);
  EXPECT_THAT(job.orders(), ElementsAre("welcome 9 as 2"));
  EXPECT_THAT(job.events(), ElementsAre("leaves 2", "left 2", "came 2"));
}

// ---- Silence ----

TEST(Nodes, QueriesASuspectedNodeOnceAndLosesItWhenItIsSilent) {
  Job job({.fewest = 1, .most = 3, .lost_after_s = 1});
  job.all_arrive();
  job.suspect(2, 0);
  job.suspect(2, kSecond / 2);
  job.suspect(0, 0);  // the leader does not query itself
  job.suspect(7, 0);
  EXPECT_THAT(job.orders(), ElementsAre("query 2"));
  job.answered(2, kSecond / 2);
  job.tick(9 * kSecond);
  EXPECT_THAT(job.events(), IsEmpty());
  job.suspect(2, 10 * kSecond);
  job.tick(11 * kSecond);
  EXPECT_THAT(job.orders(), ElementsAre("query 2", "hang up 2"));
  EXPECT_THAT(job.events(), ElementsAre("lost 2"));
}

TEST(Nodes, IgnoresUnknownPeers) {
  Job job({.fewest = 1, .most = 2});
  job.closed(5, 0);
  job.leave(5, 0);
  job.answered(5, 0);
  EXPECT_THAT(job.orders(), IsEmpty());
  EXPECT_THAT(job.events(), IsEmpty());
  EXPECT_EQ(job.node_at(1), nullptr);
  EXPECT_EQ(job.node_at(-1), nullptr);
  EXPECT_EQ(job.peer_of(0), std::nullopt);
}

// ---- Too few ----

TEST(Nodes, NamesTheMissingNodesWhenTheStartTimesOut) {
  Job job({.fewest = 3,
           .most = 4,
           .start_s = 20,
           .names = {"train-0", "train-1", "train-2", "train-3"},
           .where = "tcp://x:1"});
  job.arrive(1, pod(2, "train-2"), kSecond);
  job.tick(19 * kSecond);
  EXPECT_EQ(job.give_up(), std::nullopt);
  job.tick(20 * kSecond);
  ASSERT_TRUE(job.give_up().has_value());
  EXPECT_EQ(job.give_up()->reason, Nodes::GiveUp::Reason::not_arrived);
  EXPECT_EQ(
      job.give_up()->text,
      "2 of at least 3 nodes are here after 20 s (--start-timeout): node 1 (train-1) and node 3 (train-3) did not "
      "arrive; check the log there, and that tcp://x:1 can be reached from there");
  EXPECT_TRUE(job.next().is_never());
}

TEST(Nodes, WaitsForAReplacementUntilTheTimeout) {
  Job job({.fewest = 3, .most = 3, .timeout_s = 60});
  job.all_arrive();
  job.closed(2, 100 * kSecond);
  EXPECT_FALSE(job.are_ready());
  EXPECT_EQ(job.next().moment_ns(), 160 * kSecond);
  job.arrive(3, pod(2, "train-2-new"), 120 * kSecond);
  EXPECT_TRUE(job.are_ready());
  job.began(0);
  job.tick(200 * kSecond);
  EXPECT_EQ(job.give_up(), std::nullopt);
  job.closed(3, 300 * kSecond);
  job.tick(360 * kSecond);
  ASSERT_TRUE(job.give_up().has_value());
  EXPECT_EQ(job.give_up()->reason, Nodes::GiveUp::Reason::too_few);
  EXPECT_THAT(job.give_up()->text,
              HasSubstr("2 of at least 3 nodes are left, and within 60 s (--elastic-timeout) no other "
                        "took the place of node 2"));
}

TEST(Nodes, AnArrivalPeriodFollowsWhenEnoughNodesArePresentAgain) {
  Job job({.fewest = 2, .most = 3, .arrival_period_s = 1});
  job.all_arrive();
  job.closed(1, 0);
  job.closed(2, 0);
  job.arrive(3, pod(1, "train-1"), 10 * kSecond);
  EXPECT_FALSE(job.are_ready());
  job.tick(11 * kSecond);
  EXPECT_TRUE(job.are_ready());
}

// ---- Who may go on when the network is cut ----

TEST(Nodes, TheLeaderEndsWhenItHasLostContactWithMoreThanHalf) {
  for (const bool is_cut_off : {true, false}) {
    Job job({.fewest = 1, .most = 3, .has_successors = true});
    job.all_arrive();
    job.closed(1, 0, !is_cut_off);
    EXPECT_EQ(job.give_up(), std::nullopt);  // one of three
    job.closed(2, 0, !is_cut_off);
    ASSERT_EQ(job.give_up().has_value(), is_cut_off);  // nodes that are known to have ended do not go on elsewhere
    if (!is_cut_off) continue;
    EXPECT_EQ(job.give_up()->reason, Nodes::GiveUp::Reason::cut_off);
    EXPECT_THAT(job.give_up()->text, HasSubstr("has lost contact with 2 of 3 nodes, more than half"));
  }
}

TEST(Nodes, LossesAreCountedFromTheLatestGenerationOn) {
  Job job({.fewest = 1, .most = 3, .has_successors = true});
  job.all_arrive();
  job.deserted(1, 0);
  EXPECT_THAT(job.known(), ElementsAre(0, 1, 2));  // it may go on elsewhere
  job.began(0);
  EXPECT_THAT(job.known(), ElementsAre(0, 2));
  job.closed(2, 0, false);  // one of two
  EXPECT_EQ(job.give_up(), std::nullopt);
}

TEST(Nodes, WithoutSuccessorsTheLeaderWaitsForTheOthers) {
  Job job({.fewest = 1, .most = 3});
  job.all_arrive();
  job.closed(1, 0, false);
  job.closed(2, 0, false);
  EXPECT_EQ(job.give_up(), std::nullopt);
}

// Which nodes of a job of `voters` must come to node 1, which takes over, before it may go on.
bool may_go_on(std::set<int> voters, bool former_has_ended, std::vector<int> others) {
  Nodes job({.fewest = 1, .most = 8, .voters = std::move(voters), .former_has_ended = former_has_ended},
            pod(1, "train-1"), 0);
  for (const int number : others) job.arrive(static_cast<Nodes::Peer>(number), pod(number, "train"), 0);
  job.tick(10 * kSecond);
  return job.are_ready();
}

TEST(Nodes, ANodeThatTakesOverNeedsMoreThanHalfOfThoseThatMayBeAlive) {
  EXPECT_FALSE(may_go_on({0, 1}, false, {}));  // of two, the silent leader goes on
  EXPECT_TRUE(may_go_on({1}, true, {}));       // it has ended
  EXPECT_TRUE(may_go_on({0, 1}, false, {0}));  // its successor has come
  EXPECT_FALSE(may_go_on({0, 1, 2}, false, {}));
  EXPECT_TRUE(may_go_on({0, 1, 2}, false, {2}));
  EXPECT_FALSE(may_go_on({0, 1, 2, 3}, false, {2}));
  EXPECT_TRUE(may_go_on({0, 1, 2, 3}, false, {2, 3}));
  EXPECT_FALSE(may_go_on({0, 1, 2, 3}, false, {2, 5}));  // one that did not belong to the job
  EXPECT_TRUE(may_go_on({1, 2}, true, {}));              // half, with the lowest number
  EXPECT_FALSE(may_go_on({0, 1}, true, {}));             // half, without it
}

// ---- Nodes without a number in a job whose nodes can take over ----

// Node 1 has taken over from node 0 of a job of nodes 0, 1 and 2, of at most 4.
Nodes taken_over(std::set<int> voters, bool former_has_ended, int fewest = 1, int most = 4) {
  return Nodes({.fewest = fewest, .most = most, .voters = std::move(voters), .former_has_ended = former_has_ended},
               pod(1, "web-b"), 0);
}

TEST(Nodes, ANodeWithoutANumberIsNeverNode0) {
  Nodes job = taken_over({1}, true);
  job.arrive(5, pod(-1, "web-x"), 0);
  job.arrive(6, pod(-1, "web-y"), 0);
  job.arrive(7, pod(-1, "web-z"), 0);
  EXPECT_EQ(job.number_of(5), 2);
  EXPECT_EQ(job.number_of(6), 3);
  EXPECT_EQ(job.number_of(7), std::nullopt);  // it waits: number 0 belongs to the successor of the first leader
  job.arrive(8, pod(0, "web-leader"), 0);
  EXPECT_EQ(job.number_of(8), 0);
  job.closed(8, 0);
  EXPECT_EQ(job.number_of(7), std::nullopt);
}

TEST(Nodes, ANodeWithoutANumberIsNoEvidenceOfTheEndOfAnotherOne) {
  Nodes job = taken_over({0, 1, 2}, false, 1, 3);
  job.arrive(5, pod(-1, "web-x"), 0);
  job.tick(10 * kSecond);
  EXPECT_EQ(job.number_of(5), std::nullopt);  // number 2 is kept for the node that had it
  EXPECT_FALSE(job.are_ready());
  job.arrive(6, pod(2, "web-c"), 20 * kSecond);  // it follows
  job.tick(30 * kSecond);
  EXPECT_TRUE(job.are_ready());
  EXPECT_EQ(job.number_of(6), 2);
}

TEST(Nodes, WithEnoughFollowersAWaitingNodeGetsTheNumberOfOneThatHasNotFollowed) {
  Nodes job = taken_over({0, 1, 2}, false, 3, 3);
  job.arrive(5, pod(-1, "web-x"), 0);
  job.arrive(6, pod(0, "web-leader"), 0);  // the successor of node 0, which has ended
  EXPECT_EQ(job.number_of(5), 2);
  EXPECT_TRUE(job.are_ready());
}

TEST(Nodes, ANodeThatCameWithoutANumberIsNotCountedAsAFollower) {
  Nodes job = taken_over({0, 1, 2}, false, 3, 3);
  job.arrive(6, pod(0, "web-leader"), 0);
  job.arrive(5, pod(-1, "web-x"), 0);
  EXPECT_EQ(job.number_of(5), 2);
  job.closed(6, 0, false);  // node 0 is silent again: of three nodes only this one is left
  job.arrive(7, pod(-1, "web-y"), 0);
  job.tick(10 * kSecond);
  EXPECT_FALSE(job.are_ready());
}

TEST(Nodes, LossesOfContactAreNotForgottenWhenAnotherNodeGetsTheNumber) {
  for (const bool has_number : {true, false}) {
    Job job({.fewest = 1, .most = 3, .has_successors = true});
    job.all_arrive();
    job.closed(1, 0, false);
    job.arrive(9, pod(has_number ? 1 : -1, "web-x"), 0);
    EXPECT_EQ(job.number_of(9), 1);
    job.closed(2, 0, false);
    EXPECT_EQ(job.give_up().has_value(), !has_number);  // a successor with its number is evidence of its end
  }
}

TEST(Nodes, ANodeThatTakesOverNamesTheRuleWhenTooFewCome) {
  Nodes job({.fewest = 1, .most = 3, .timeout_s = 60, .voters = {0, 1}}, pod(1, "train-1"), 0);
  job.tick(61 * kSecond);
  ASSERT_TRUE(job.give_up().has_value());
  EXPECT_EQ(job.give_up()->reason, Nodes::GiveUp::Reason::cut_off);
  EXPECT_THAT(job.give_up()->text, HasSubstr("of 2 nodes that may be alive only 1 was within 60 s"));
  EXPECT_THAT(job.give_up()->text, HasSubstr("of two nodes that lose each other, the one that led goes on"));
}

}  // namespace
}  // namespace fdl
