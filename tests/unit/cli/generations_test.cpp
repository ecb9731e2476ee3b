// Generations is tested as a state machine: membership, replacements, limits and places of an elastic job.
#include "cli/elastic/generations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Reason = Generations::Reason;

class Job : public Generations {
 public:
  explicit Job(const Limits& limits) : Generations(limits) { start_all(); }
  void start_all() {
    while (to_start() > 0) start();
  }
  void request_all(const std::vector<int>& workers) {
    for (const int worker : workers) requested(worker);
  }
  // The workers of the generation that begins now, in rank order; empty if none begins.
  std::vector<int> next() {
    auto world = begin();
    return world ? world->workers : std::vector<int>();
  }
  std::optional<Reason> ends() const { return give_up() ? std::optional(give_up()->reason) : std::nullopt; }
};

TEST(Generations, TheFirstBeginsWhenAllWorkersHaveRequestedIt) {
  Job job({.ranks = 3, .most = 3});
  job.request_all({2, 0});
  EXPECT_THAT(job.next(), IsEmpty());
  job.requested(1);
  EXPECT_THAT(job.next(), ElementsAre(0, 1, 2));
  EXPECT_EQ(job.generation(), 1);
  EXPECT_THAT(job.next(), IsEmpty());  // it has begun already
}

TEST(Generations, AReplacementGetsTheLastRank) {
  Job job({.ranks = 3, .most = 3});
  job.request_all({0, 1, 2});
  job.next();
  job.ended(0, false);
  EXPECT_EQ(job.to_start(), 1);
  job.request_all({1, 2});
  EXPECT_THAT(job.next(), IsEmpty());  // the replacement has not been started
  job.start_all();
  EXPECT_THAT(job.next(), IsEmpty());
  job.requested(3);
  EXPECT_THAT(job.next(), ElementsAre(1, 2, 3));
  EXPECT_EQ(job.rank_of(1), 0);
  EXPECT_EQ(job.worker_at(2), 3);
}

TEST(Generations, RankZeroIsTheWorkerThatHasHeldTheStateLongest) {
  Job job({.ranks = 3, .most = 3});
  job.request_all({0, 1, 2});
  job.next();
  job.ended(0, false);
  job.ended(1, false);
  job.start_all();
  job.request_all({2, 3, 4});
  EXPECT_THAT(job.next(), ElementsAre(2, 3, 4));
  job.ended(3, false);
  job.start_all();
  job.request_all({5, 4, 2});
  EXPECT_THAT(job.next(), ElementsAre(2, 4, 5));
}

TEST(Generations, AWorkerLostBetweenGenerationsIsReplacedToo) {
  Job job({.ranks = 3, .most = 3});
  job.request_all({0, 1, 2});
  job.next();
  job.ended(1, false);
  job.start_all();
  job.requested(0);
  job.ended(2, false);
  EXPECT_EQ(job.to_start(), 1);
  job.start_all();
  job.request_all({3, 4});
  EXPECT_THAT(job.next(), ElementsAre(0, 3, 4));
}

TEST(Generations, EnoughMembersDoNotWaitForAReplacement) {
  Job job({.ranks = 3, .fewest = 2, .most = 3, .enough = 2});
  job.request_all({0, 1});
  EXPECT_THAT(job.next(), IsEmpty());  // the first generation waits for all
  job.requested(2);
  job.next();
  job.ended(1, false);
  job.start_all();
  job.requested(0);
  EXPECT_THAT(job.next(), IsEmpty());  // a member is waited for
  job.requested(2);
  EXPECT_THAT(job.next(), ElementsAre(0, 2));
  EXPECT_FALSE(job.has_waiting_newcomers());
  job.requested(3);
  EXPECT_TRUE(job.has_waiting_newcomers());
  job.request_all({0, 2});
  EXPECT_THAT(job.next(), ElementsAre(0, 2, 3));
}

TEST(Generations, TooFewMembersWaitForAReplacement) {
  Job job({.ranks = 3, .fewest = 3, .most = 3, .enough = 3});
  job.request_all({0, 1, 2});
  job.next();
  job.ended(1, false);
  job.start_all();
  job.request_all({0, 2});
  EXPECT_THAT(job.next(), IsEmpty());
  job.requested(3);
  EXPECT_THAT(job.next(), ElementsAre(0, 2, 3));
}

TEST(Generations, AReplacementThatJoinsLaterIsNoFurtherReset) {
  Job job({.ranks = 2, .fewest = 1, .most = 2, .resets = 1, .enough = 1});
  job.request_all({0, 1});
  job.next();
  job.ended(1, false);
  job.start_all();
  job.requested(0);
  EXPECT_THAT(job.next(), ElementsAre(0));
  job.request_all({2, 0});
  EXPECT_EQ(job.ends(), std::nullopt);
  EXPECT_THAT(job.next(), ElementsAre(0, 2));
  job.ended(2, false);
  EXPECT_EQ(job.ends(), Reason::too_many_resets);
}

TEST(Generations, WithoutReplacementsTheJobShrinks) {
  Job job({.ranks = 3, .fewest = 2, .most = 3, .replacements = 0});
  job.request_all({0, 1, 2});
  job.next();
  job.ended(1, false);
  EXPECT_EQ(job.to_start(), 0);
  job.request_all({0, 2});
  EXPECT_THAT(job.next(), ElementsAre(0, 2));
  job.ended(0, false);
  EXPECT_EQ(job.ends(), Reason::too_few);
  EXPECT_EQ(job.give_up()->text, "1 rank is left, and the job needs at least 2; no more may be replaced");
}

TEST(Generations, StopsReplacingAtTheLimit) {
  Job job({.ranks = 2, .fewest = 1, .most = 2, .replacements = 1});
  job.request_all({0, 1});
  job.next();
  job.ended(1, false);
  job.start_all();
  job.request_all({0, 2});
  EXPECT_THAT(job.next(), ElementsAre(0, 2));
  job.ended(2, false);
  EXPECT_EQ(job.to_start(), 0);
  job.requested(0);
  EXPECT_THAT(job.next(), ElementsAre(0));
}

TEST(Generations, AWorkerThatFailsBeforeItsFirstGenerationIsNotReplaced) {
  Job job({.ranks = 3, .fewest = 2, .most = 3});
  job.ended(1, false);
  EXPECT_EQ(job.to_start(), 0);
  job.request_all({0, 2});
  EXPECT_THAT(job.next(), ElementsAre(0, 2));
  job.ended(2, false);
  job.start_all();
  job.ended(3, false);
  EXPECT_EQ(job.ends(), Reason::too_few);
}

TEST(Generations, GivesUpWhenAllWorkersFailBeforeTheFirst) {
  Job job({.ranks = 2, .fewest = 1, .most = 2});
  job.ended(0, false);
  EXPECT_EQ(job.ends(), std::nullopt);
  job.ended(1, false);
  EXPECT_EQ(job.ends(), Reason::all_failed);
}

TEST(Generations, GivesUpWhenNoWorkerHoldsTheState) {
  Job job({.ranks = 2, .fewest = 1, .most = 2});
  job.request_all({0, 1});
  job.next();
  job.ended(0, false);
  job.start_all();
  job.ended(1, false);
  EXPECT_EQ(job.ends(), Reason::no_state);
  EXPECT_EQ(job.to_start(), 0);
}

TEST(Generations, AMemberThatHasNotReceivedTheStateHoldsNone) {
  Job job({.ranks = 2, .fewest = 1, .most = 2});
  job.request_all({0, 1});
  job.next();
  job.ended(1, false);
  job.start_all();
  job.request_all({0, 2});
  EXPECT_THAT(job.next(), ElementsAre(0, 2));
  job.ended(0, false);
  job.start_all();
  EXPECT_EQ(job.ends(), std::nullopt);  // worker 2 may hold it
  job.requested(2, true);
  EXPECT_EQ(job.ends(), Reason::no_state);
}

TEST(Generations, ALossIsNoticedBeforeOrAfterTheRequestWithoutTheState) {
  Job job({.ranks = 2, .fewest = 1, .most = 2, .restarts = 1});
  job.request_all({0, 1});
  job.next();
  job.ended(1, false);
  job.start_all();
  job.request_all({0, 2});
  job.next();
  job.requested(2, true);
  EXPECT_EQ(job.restarts(), 0);
  job.ended(0, false);
  EXPECT_EQ(job.restarts(), 1);
  job.start_all();
  job.requested(3);
  EXPECT_THAT(job.next(), ElementsAre(2, 3));
  job.requested(2, true);  // that generation began anew: all have the state with which training begins
  job.ended(3, false);
  EXPECT_EQ(job.ends(), std::nullopt);
}

TEST(Generations, WorkersOfTheFirstHoldTheStateOfTheBeginning) {
  Job job({.ranks = 2, .fewest = 1, .most = 2});
  job.request_all({0, 1});
  job.next();
  job.ended(0, false);
  job.start_all();
  job.requested(1, true);
  job.requested(2);
  EXPECT_THAT(job.next(), ElementsAre(1, 2));
  EXPECT_EQ(job.ends(), std::nullopt);
}

TEST(Generations, AMemberWithoutTheStateComesAfterThoseThatHoldIt) {
  Job job({.ranks = 3, .fewest = 1, .most = 3});
  job.request_all({0, 1, 2});
  job.next();
  job.ended(1, false);
  job.ended(2, false);
  job.start_all();
  job.request_all({0, 3, 4});
  EXPECT_THAT(job.next(), ElementsAre(0, 3, 4));
  job.ended(0, false);
  job.start_all();
  job.requested(3, true);
  job.request_all({4, 5});
  EXPECT_THAT(job.next(), ElementsAre(4, 3, 5));
}

TEST(Generations, ANewcomerThatEndsWellBeforeItTookPartDoesNotEndTheJob) {
  Job job({.ranks = 2, .fewest = 1, .most = 2});
  job.request_all({0, 1});
  job.next();
  job.ended(1, false);
  job.start_all();
  EXPECT_TRUE(job.ended(2, true));
  EXPECT_FALSE(job.has_finished());
  EXPECT_EQ(job.to_start(), 0);  // another one would do the same
  job.requested(0);
  EXPECT_THAT(job.next(), ElementsAre(0));
}

TEST(Generations, ProgramsThatEndWellBeforeTheFirstHaveFinished) {
  Job job({.ranks = 2, .most = 2});
  EXPECT_FALSE(job.ended(0, true));
  EXPECT_TRUE(job.has_finished());
}

TEST(Generations, AtTheLimitOfResetsNoneFollowsForNewcomers) {
  Job job({.ranks = 1, .fewest = 1, .most = 2, .resets = 0});
  job.requested(0);
  job.next();
  job.set_target(2);
  job.start_all();
  job.requested(1);
  EXPECT_TRUE(job.has_waiting_newcomers());
  EXPECT_FALSE(job.may_add());
}

TEST(Generations, NamesTheWorkersThatTheNextOneWaitsFor) {
  Job job({.ranks = 3, .fewest = 1, .most = 3});
  job.requested(1);
  EXPECT_THAT(job.awaited(), ElementsAre(0, 2));
  job.request_all({0, 2});
  job.next();
  job.ended(1, false);
  job.start_all();
  job.requested(0);
  EXPECT_THAT(job.awaited(), ElementsAre(2));
  job.requested(2);
  EXPECT_THAT(job.awaited(), ElementsAre(3));
}

TEST(Generations, GivesUpAtTheLimitOfResets) {
  Job job({.ranks = 2, .fewest = 1, .most = 2, .resets = 1});
  job.request_all({0, 1});
  job.next();
  job.ended(1, false);
  job.start_all();
  EXPECT_EQ(job.ends(), std::nullopt);
  job.request_all({0, 2});
  EXPECT_THAT(job.next(), ElementsAre(0, 2));
  job.requested(0);  // a member without a loss: its generation failed
  EXPECT_EQ(job.ends(), Reason::too_many_resets);
  EXPECT_EQ(job.give_up()->text, "the limit of 1 resets is reached");
}

TEST(Generations, ALossBeyondTheLimitOfResetsEndsTheJobAtOnce) {
  Job job({.ranks = 2, .fewest = 1, .most = 2, .resets = 0});
  job.request_all({0, 1});
  EXPECT_THAT(job.next(), ElementsAre(0, 1));
  job.ended(1, false);
  EXPECT_EQ(job.ends(), Reason::too_many_resets);
}

TEST(Generations, AWorkerThatCameTooLateIsNoLoss) {
  Job job({.ranks = 1, .most = 1});
  job.requested(0);
  job.next();
  job.open_place(1, 1);
  const int late = job.start(1);
  job.ended(0, true);
  EXPECT_FALSE(job.ended(late, false));
  EXPECT_EQ(job.ends(), std::nullopt);
}

TEST(Generations, NoneFollowsAfterAWorkerHasFinished) {
  Job job({.ranks = 3, .most = 3});
  job.request_all({0, 1, 2});
  job.next();
  job.ended(0, true);
  EXPECT_TRUE(job.has_finished());
  EXPECT_EQ(job.to_start(), 0);
  job.request_all({1, 2});
  EXPECT_THAT(job.next(), IsEmpty());
  job.ended(1, true);
  EXPECT_EQ(job.ends(), std::nullopt);
  job.ended(2, false);
  EXPECT_EQ(job.ends(), Reason::failed_at_end);
}

TEST(Generations, AdditionalWorkersJoinWhenTheMembersRequestAGeneration) {
  Job job({.ranks = 2, .most = 4});
  job.request_all({0, 1});
  job.next();
  job.set_target(9);
  EXPECT_EQ(job.to_start(), 2);  // the limit is 4
  job.start_all();
  EXPECT_FALSE(job.has_waiting_newcomers());
  job.requested(2);
  EXPECT_FALSE(job.has_waiting_newcomers());  // worker 3 has not requested one
  job.requested(3);
  EXPECT_TRUE(job.has_waiting_newcomers());
  job.request_all({0, 1});
  EXPECT_THAT(job.next(), ElementsAre(0, 1, 2, 3));
  EXPECT_FALSE(job.has_waiting_newcomers());
}

TEST(Generations, ANewcomersFailureCountsAsNoReset) {
  Job job({.ranks = 2, .most = 3, .resets = 0});
  job.request_all({0, 1});
  job.next();
  job.set_target(3);
  job.start_all();
  job.ended(2, false);
  EXPECT_EQ(job.ends(), std::nullopt);
  EXPECT_EQ(job.to_start(), 0);
}

TEST(Generations, ShrinkingDismissesTheYoungestWorkers) {
  Job job({.ranks = 3, .fewest = 1, .most = 3});
  job.request_all({0, 1, 2});
  job.next();
  job.set_target(0);
  EXPECT_TRUE(job.has_to_shrink());
  job.request_all({0, 1, 2});
  const auto world = job.begin();
  ASSERT_TRUE(world.has_value());
  EXPECT_THAT(world->workers, ElementsAre(0));
  EXPECT_THAT(world->dismissed, ElementsAre(1, 2));
  EXPECT_FALSE(job.has_to_shrink());
  EXPECT_FALSE(job.ended(1, false));  // a dismissed worker is no loss
  EXPECT_EQ(job.ends(), std::nullopt);
  EXPECT_EQ(job.to_start(), 0);
  job.requested(0);
  EXPECT_THAT(job.next(), ElementsAre(0));
}

// ---- Several places ----

// Two places with two workers each, all in generation 1: 0 and 1, 2 and 3.
class Spread : public Job {
 public:
  explicit Spread(Limits limits = {.ranks = 2}) : Job(limits) {
    open_place(1, 2);
    start_everywhere();
    request_all({0, 1, 2, 3});
    next();
  }
  void start_everywhere() {
    while (const auto place = place_to_start_at()) start(*place);
  }
};

TEST(Generations, RanksOfOnePlaceAreConsecutive) {
  Spread job;
  EXPECT_EQ(job.place_of(1), 0);
  EXPECT_EQ(job.place_of(2), 1);
  EXPECT_EQ(job.rank_of(3), 3);
  job.ended(0, false);
  EXPECT_EQ(job.place_to_start_at(), 0);
  job.start_everywhere();
  job.request_all({1, 2, 3, 4});
  EXPECT_THAT(job.next(), ElementsAre(1, 4, 2, 3));  // 4 is new, but gets the rank after 1
}

TEST(Generations, ALostPlaceLosesItsWorkers) {
  Spread job;
  EXPECT_TRUE(job.lose_place(1));
  EXPECT_EQ(job.to_start(), 0);
  EXPECT_EQ(job.target(), 2);
  job.request_all({0, 1});
  EXPECT_THAT(job.next(), ElementsAre(0, 1));
  EXPECT_EQ(job.ends(), std::nullopt);
}

TEST(Generations, AnAddedPlaceGrowsTheJob) {
  Spread job;
  job.lose_place(1);
  job.request_all({0, 1});
  job.next();
  job.open_place(1, 2);
  EXPECT_EQ(job.place_to_start_at(), 1);
  job.start_everywhere();
  job.requested(4);
  EXPECT_FALSE(job.has_waiting_newcomers());
  job.requested(5);
  EXPECT_TRUE(job.has_waiting_newcomers());
  job.request_all({0, 1});
  EXPECT_THAT(job.next(), ElementsAre(0, 1, 4, 5));
}

TEST(Generations, AClosingPlaceDismissesEvenTheEldestWorkers) {
  Spread job;
  job.close_place(0);
  EXPECT_TRUE(job.has_to_shrink());
  EXPECT_EQ(job.to_start(), 0);
  job.request_all({0, 1, 2, 3});
  const auto world = job.begin();
  ASSERT_TRUE(world.has_value());
  EXPECT_THAT(world->workers, ElementsAre(2, 3));
  EXPECT_THAT(world->dismissed, ElementsAre(0, 1));
  EXPECT_FALSE(job.lose_place(0) && job.ends());
}

TEST(Generations, AWorkerThatFailsAtAClosingPlaceIsNotReplaced) {
  Spread job;
  job.close_place(1);
  EXPECT_TRUE(job.ended(2, false));
  EXPECT_EQ(job.to_start(), 0);
  job.request_all({0, 1, 3});
  EXPECT_THAT(job.next(), ElementsAre(0, 1));
}

// Its node got SIGTERM, and the program has ended by itself and not at a commit.
TEST(Generations, AWorkerThatEndsWellAtAClosingPlaceDoesNotEndTheJob) {
  Spread job;
  job.close_place(1);
  EXPECT_FALSE(job.ended(2, true));
  EXPECT_FALSE(job.has_finished());
  job.request_all({0, 1, 3});
  EXPECT_THAT(job.next(), ElementsAre(0, 1));
}

TEST(Generations, WorkersThatAllEndWellHaveFinishedAlsoAtClosingPlaces) {
  Spread job;
  job.close_place(0);
  job.close_place(1);
  for (const int worker : {0, 1, 2, 3}) EXPECT_FALSE(job.ended(worker, true));
  EXPECT_TRUE(job.has_finished());
  EXPECT_EQ(job.ends(), std::nullopt);
}

TEST(Generations, GivesUpWhenAllPlacesWithTheStateAreLost) {
  Spread job;
  job.ended(0, false);
  job.ended(1, false);
  job.lose_place(1);
  EXPECT_EQ(job.ends(), Reason::no_state);
}

TEST(Generations, RestartsAllWorkersUpToTheLimit) {
  Spread job({.ranks = 2, .restarts = 1});
  for (const int worker : {0, 1, 2, 3}) job.ended(worker, false);
  EXPECT_EQ(job.ends(), std::nullopt);
  EXPECT_EQ(job.restarts(), 1);
  job.start_everywhere();
  job.ended(4, false);  // before init(): its place is given up without a restart
  EXPECT_EQ(job.restarts(), 1);
  job.request_all({5, 6, 7});
  EXPECT_THAT(job.next(), ElementsAre(5, 6, 7));
  for (const int worker : {5, 6, 7}) job.ended(worker, false);
  EXPECT_EQ(job.ends(), Reason::no_state);
}

TEST(Generations, IgnoresUnknownWorkers) {
  Job job({.ranks = 1});
  job.requested(7);
  job.ended(7, false);
  EXPECT_EQ(job.ends(), std::nullopt);
  EXPECT_FALSE(job.is_member(7));
  EXPECT_FALSE(job.has_requested(7));
}

// ---- Taking over ----

TEST(Generations, ALauncherThatTakesOverContinuesWithTheWorkersOfTheFormerOne) {
  Generations job({.place = 1, .ranks = 1, .fewest = 1, .most = 1, .resets = 3});
  job.continue_from({.generation = 3, .completions = 1}, 1 << 20);
  job.open_place(2, 1);
  job.adopt(4, 1, {.joined = 3, .rank = 1, .requesting = true});
  job.adopt(2, 2, {.joined = 1, .rank = 2});
  job.check_state();
  EXPECT_EQ(job.to_start(), 0);
  EXPECT_EQ(job.begin(), std::nullopt);
  job.requested(2);
  const auto world = job.begin();
  ASSERT_TRUE(world.has_value());
  EXPECT_EQ(world->generation, 4);
  EXPECT_THAT(world->workers, ElementsAre(2, 4));  // rank 0 has held the state longest
  job.ended(4, false);
  EXPECT_EQ(job.start(1), 1 << 20);  // no other launcher has used this number
}

TEST(Generations, ALauncherThatTakesOverWaitsForPlacesThatMayHoldTheState) {
  Generations job({.place = 1, .ranks = 1, .fewest = 1, .most = 1});
  job.continue_from({.generation = 4, .state_since = 1}, 1 << 20);
  job.adopt(4, 1, {.joined = 4, .rank = 1});
  job.requested(4, true);
  job.ended(4, false);
  EXPECT_EQ(job.give_up(), std::nullopt);
  job.open_place(2, 1);
  job.adopt(2, 2, {.joined = 4, .rank = 0, .requesting = true, .lacks_state = true});
  job.check_state();
  ASSERT_TRUE(job.give_up());
  EXPECT_EQ(job.give_up()->reason, Reason::no_state);
}

TEST(Generations, WithoutAWorkerThatHoldsTheStateAllBeginAnewOrTheJobEnds) {
  for (const int restarts : {1, 0}) {
    Generations job({.place = 1, .ranks = 1, .fewest = 1, .most = 1, .restarts = restarts});
    job.continue_from({.generation = 1}, 1 << 20);
    job.adopt(4, 1, {.joined = 0, .rank = -1, .requesting = true});
    job.check_state();
    EXPECT_EQ(job.give_up().has_value(), restarts == 0);
    EXPECT_EQ(job.begin().has_value(), restarts == 1);
  }
}

}  // namespace
}  // namespace fdl
