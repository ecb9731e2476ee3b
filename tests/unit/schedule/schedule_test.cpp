// Tests of the schedule module with schedules written by hand: building, ordering, verifying, simulating and
// describing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "schedule/builder.h"
#include "schedule/order.h"
#include "schedule/places.h"
#include "schedule/print/describe.h"
#include "schedule/proof/simulate.h"
#include "schedule/proof/verify.h"

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Builder allreduce(int rank, int size, int chunks = 1) { return {"hand", Collective::allreduce, rank, size, chunks}; }

// Two ranks that exchange the whole vector: the smallest correct allreduce.
std::vector<Schedule> exchange() {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 2; ++rank) {
    auto step = allreduce(rank, 2);
    step.copy(output(0), input(0)).send(1 - rank, output(0)).recv_reduce(1 - rank, output(0));
    schedules.push_back(step.take());
  }
  return schedules;
}

std::string refusal(const std::vector<Schedule>& schedules, bool in_place = false) {
  const auto report = verify(schedules, in_place);
  return report.ok() ? "not refused" : report.status().text();
}

// ---- Places ----

Schedule empty_schedule(Collective collective, int rank, int size) {
  return Builder("hand", collective, rank, size, size).take();
}

TEST(Places, InputAndOutputAreSeparateUnlessInPlace) {
  const Schedule schedule = empty_schedule(Collective::allreduce, 1, 4);
  const Places apart(schedule);
  EXPECT_EQ(apart.total(), 8);
  EXPECT_NE(apart.first(input(2)), apart.first(output(2)));
  const Places in_place(schedule, true);
  EXPECT_EQ(in_place.total(), 4);
  EXPECT_EQ(in_place.first(input(2)), in_place.first(output(2)));
}

TEST(Places, InPlaceTheSmallSideIsTheRanksChunkOfTheLargeSide) {
  const Places gathers(empty_schedule(Collective::allgather, 2, 4), true);
  EXPECT_EQ(gathers.first(input(0)), gathers.first(output(2)));
  EXPECT_EQ(gathers.total(), 4);
  const Places scatters(empty_schedule(Collective::reduce_scatter, 3, 4), true);
  EXPECT_EQ(scatters.first(output(0)), scatters.first(input(3)));
  EXPECT_EQ(scatters.total(), 4);
}

TEST(Places, OnlyTheRootHasBothSides) {
  EXPECT_EQ(Places(empty_schedule(Collective::reduce, 1, 4)).count(Space::output), 0);
  EXPECT_EQ(Places(empty_schedule(Collective::broadcast, 1, 4)).count(Space::input), 0);
  EXPECT_EQ(Places(empty_schedule(Collective::gather, 1, 4)).count(Space::output), 0);
  EXPECT_EQ(Places(empty_schedule(Collective::scatter, 1, 4)).count(Space::input), 0);
  EXPECT_EQ(Places(empty_schedule(Collective::scatter, 0, 4)).count(Space::input), 4);
}

// ---- Builder ----

TEST(BuilderDeathTest, AbortsOnInvalidSteps) {
  EXPECT_DEATH(allreduce(0, 2).send(0, output(0)), "bug");
  EXPECT_DEATH(allreduce(0, 2).send(2, output(0)), "bug");
  EXPECT_DEATH(allreduce(0, 2).recv(1, input(0)), "bug");
  EXPECT_DEATH(allreduce(0, 2).copy(output(0, 2), input(0, 1)), "bug");
  EXPECT_DEATH(allreduce(0, 2).reduce(output(0, 2), scratch(0, 2)), "bug");
  EXPECT_DEATH(allreduce(0, 2).send(1, output(0, 0)), "bug");
}

TEST(Builder, NumbersScratchInOrder) {
  auto step = allreduce(0, 2, 4);
  EXPECT_EQ(step.new_scratch(3), scratch(0));
  EXPECT_EQ(step.new_scratch(1), scratch(1));
  EXPECT_THAT(step.take().scratch_sizes, ElementsAre(3, 1));
}

// ---- Order ----

std::vector<std::vector<Dependency>> order_of(Builder& step, bool in_place = false) {
  return order(step.take(), in_place);
}

TEST(Order, ReadFollowsWriteAndWriteFollowsReads) {
  auto step = allreduce(0, 4);
  step.copy(output(0), input(0)).send(1, output(0)).send(2, output(0)).recv(3, output(0));
  const auto dependencies = order_of(step);
  EXPECT_THAT(dependencies[0], IsEmpty());
  EXPECT_THAT(dependencies[1], ElementsAre(Dependency{0, false}));
  EXPECT_THAT(dependencies[2], ElementsAre(Dependency{0, false}));
  EXPECT_THAT(dependencies[3], ElementsAre(Dependency{1, false}, Dependency{2, false}));  // and through them the copy
}

TEST(Order, PartlyOverlappingRangesAreFollowedWhole) {
  auto step = allreduce(0, 2, 4);
  step.copy(output(0, 4), input(0, 4)).send(1, output(1, 2)).recv(1, output(2, 1));
  const auto dependencies = order_of(step);
  EXPECT_THAT(dependencies[1], ElementsAre(Dependency{0, true}));
  EXPECT_THAT(dependencies[2], ElementsAre(Dependency{1, true}));
}

TEST(Order, ReduceFollowsEachOfItsSourcesBySlices) {
  auto step = allreduce(0, 3);
  for (int i = 0; i < 3; ++i) step.new_scratch(0);
  step.recv(1, scratch(1)).recv(2, scratch(2)).copy(scratch(0), input(0)).reduce(output(0), scratch(0, 3));
  const auto dependencies = order_of(step);
  EXPECT_THAT(dependencies[3], ElementsAre(Dependency{2, false}, Dependency{0, false}, Dependency{1, false}));
}

TEST(Order, StepsOnOtherChunksHaveNoDependencies) {
  auto step = allreduce(0, 2, 2);
  step.copy(output(0), input(0)).copy(output(1), input(1)).recv(1, output(1));
  EXPECT_THAT(order_of(step)[1], IsEmpty());
}

TEST(Order, InPlaceAReceiveFollowsTheSendOfTheSameChunk) {
  Builder step("hand", Collective::alltoall, 0, 2, 2);
  step.send(1, input(1)).recv(1, output(1));
  const Schedule schedule = step.take();
  EXPECT_THAT(order(schedule, false)[1], IsEmpty());
  EXPECT_THAT(order(schedule, true)[1], ElementsAre(Dependency{0, false}));
}

struct Access {
  int32_t first;
  int32_t count;
  bool writes;
};

std::vector<Access> accesses_of(const Places& places, const Step& step) {
  std::vector<Access> accesses;
  const bool local = step.kind == StepKind::copy || step.kind == StepKind::reduce;
  if (step.kind == StepKind::reduce) {
    for (int32_t i = 0; i < step.source.count; ++i) accesses.push_back({places.first(step.source) + i, 1, false});
  } else if (local || step.kind == StepKind::send) {
    accesses.push_back({places.first(step.source), step.source.count, false});
  }
  if (step.kind != StepKind::send) accesses.push_back({places.first(step.target), step.target.count, true});
  return accesses;
}

// How strongly a step must follow another: not at all, slice by slice, or whole.
enum class Bond : uint8_t { none, slices, whole };

Bond needed(const Places& places, const Step& earlier, const Step& later) {
  Bond bond = Bond::none;
  for (const Access& a : accesses_of(places, earlier)) {
    for (const Access& b : accesses_of(places, later)) {
      const bool overlap = a.first < b.first + b.count && b.first < a.first + a.count;
      if (!overlap || (!a.writes && !b.writes)) continue;
      bond = std::max(bond, a.first == b.first && a.count == b.count ? Bond::slices : Bond::whole);
    }
  }
  return bond;
}

// A copy onto itself does nothing; verify() refuses any other overlap within one step.
bool overlaps_itself(const Places& places, const Step& step) {
  if (step.kind != StepKind::copy && step.kind != StepKind::reduce) return false;
  const int32_t source = places.first(step.source);
  const int32_t target = places.first(step.target);
  if (step.kind == StepKind::copy && source == target) return false;
  return source < target + step.target.count && target < source + step.source.count;
}

Schedule random_schedule(std::mt19937_64& random, bool in_place) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Schedule schedule = empty_schedule(static_cast<Collective>(below(6)), below(4), 4);
  schedule.scratch_sizes = {0, 1, 2, 3};
  const Places places(schedule, in_place);
  const auto any_range = [&](bool writable) {
    Space space = static_cast<Space>(below(3));
    while (places.count(space) == 0 || (writable && space == Space::input)) space = static_cast<Space>(below(3));
    const int first = below(places.count(space));
    return ChunkRange{space, first, 1 + below(places.count(space) - first)};
  };
  while (schedule.steps.size() < 24) {
    Step step{
        .kind = static_cast<StepKind>(below(5)), .peer = 1, .source = any_range(false), .target = any_range(true)};
    if (step.kind == StepKind::reduce) step.target.count = 1;
    if (step.kind == StepKind::copy && step.source.count != step.target.count) continue;
    if (overlaps_itself(places, step)) continue;
    schedule.steps.push_back(step);
  }
  return schedule;
}

// The strongest path between all pairs of steps: a path is `whole` if one of its edges is.
std::vector<std::vector<Bond>> paths(const std::vector<std::vector<Dependency>>& dependencies) {
  const std::size_t count = dependencies.size();
  std::vector<std::vector<Bond>> bonds(count, std::vector<Bond>(count, Bond::none));
  for (std::size_t later = 0; later < count; ++later) {
    for (const Dependency& dependency : dependencies[later]) {
      const auto middle = static_cast<std::size_t>(dependency.step);
      const Bond edge = dependency.whole ? Bond::whole : Bond::slices;
      bonds[later][middle] = std::max(bonds[later][middle], edge);
      for (std::size_t earlier = 0; earlier < middle; ++earlier) {
        if (bonds[middle][earlier] == Bond::none) continue;
        bonds[later][earlier] = std::max(bonds[later][earlier], std::max(edge, bonds[middle][earlier]));
      }
    }
  }
  return bonds;
}

TEST(Order, CoversExactlyTheConflictsOfRandomSchedules) {
  constexpr uint64_t kSeed = 7;
  std::mt19937_64 random(kSeed);
  int conflicts = 0;
  for (int round = 0; round < 1000; ++round) {
    const bool in_place = round % 2 == 1;
    const Schedule schedule = random_schedule(random, in_place);
    const Places places(schedule, in_place);
    const auto dependencies = order(schedule, in_place);
    const auto held = paths(dependencies);
    for (std::size_t later = 0; later < schedule.steps.size(); ++later) {
      for (std::size_t earlier = 0; earlier < later; ++earlier) {
        const Bond bond = needed(places, schedule.steps[earlier], schedule.steps[later]);
        conflicts += bond != Bond::none;
        ASSERT_GE(held[later][earlier], bond) << "seed " << kSeed << ", round " << round << "\n" << describe(schedule);
      }
      for (const Dependency& dependency : dependencies[later]) {
        const auto earlier = static_cast<std::size_t>(dependency.step);
        ASSERT_NE(needed(places, schedule.steps[earlier], schedule.steps[later]), Bond::none) << describe(schedule);
      }
    }
  }
  EXPECT_GT(conflicts, 10000);
}

// ---- Verify ----

TEST(Verify, AcceptsAnExchangeAndCountsIt) {
  const auto report = verify(exchange());
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->steps, 6);
  EXPECT_EQ(report->messages, 2);
  EXPECT_EQ(report->rounds, 1);
  EXPECT_FALSE(report->folds_in_rank_order);  // rank 1 adds rank 0's part after its own
}

TEST(Verify, NamesTheWaitingRanksOfADeadlock) {
  auto schedules = exchange();
  for (Schedule& schedule : schedules) {
    // A plain receive has no staging: it waits for the send from the same chunk, which waits for the peer's receive.
    schedule.steps[2].kind = StepKind::recv;
  }
  EXPECT_EQ(refusal(schedules),
            "deadlock: rank 0 waits for rank 1 (hand, step 1: send chunk 0 to rank 1); rank 1 waits for rank 0 (hand, "
            "step 1: send chunk 0 to rank 0)");
}

TEST(Verify, RejectsASendWithoutReceive) {
  auto schedules = exchange();
  schedules[1].steps.pop_back();
  EXPECT_EQ(refusal(schedules), "hand: rank 0 sends 1 messages to rank 1, which receives 0");
}

TEST(Verify, RejectsAReceiveWithoutSend) {
  auto schedules = exchange();
  schedules[1].steps.erase(schedules[1].steps.begin() + 1);
  EXPECT_EQ(refusal(schedules), "hand: rank 1 sends 0 messages to rank 0, which receives 1");
}

TEST(Verify, RejectsMessagesOfDifferentSizes) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 2; ++rank) {
    auto step = allreduce(rank, 2, 2);
    step.copy(output(0, 2), input(0, 2)).send(1 - rank, output(rank)).recv_reduce(1 - rank, output(rank));
    schedules.push_back(step.take());
  }
  EXPECT_EQ(refusal(schedules),
            "sizes differ: rank 0 (hand, step 1: send chunk 0 to rank 1) matches rank 1 (hand, step 2: recv_reduce "
            "chunk 1 from rank 0)");
}

TEST(Verify, RejectsMissingAndDoubledContributions) {
  auto missing = exchange();
  for (Schedule& schedule : missing) schedule.steps.resize(1);
  EXPECT_EQ(refusal(missing), "hand: output chunk 0 of rank 0 lacks chunk 0 of rank 1");

  auto doubled = exchange();
  for (int rank = 0; rank < 2; ++rank) {
    auto& steps = doubled[static_cast<std::size_t>(rank)].steps;
    steps.push_back(steps[1]);
    steps.push_back(steps[2]);
  }
  EXPECT_EQ(refusal(doubled), "hand: output chunk 0 of rank 0 has chunk 0 of rank 0 twice");

  Builder root("hand", Collective::broadcast, 0, 2, 1);
  Builder other("hand", Collective::broadcast, 1, 2, 1);
  root.copy(output(0), input(0)).send(1, input(0)).send(1, input(0));
  other.recv(0, output(0)).recv_reduce(0, output(0));
  EXPECT_EQ(refusal({root.take(), other.take()}), "hand: output chunk 0 of rank 1 has chunk 0 of rank 0 twice");
}

TEST(Verify, RejectsAChunkOfTheWrongRank) {
  Builder gather0("hand", Collective::allgather, 0, 2, 2);
  Builder gather1("hand", Collective::allgather, 1, 2, 2);
  gather0.copy(output(0), input(0)).send(1, input(0)).recv(1, output(1));
  gather1.copy(output(1), input(0)).send(0, input(0)).recv(0, output(0));
  auto schedules = std::vector<Schedule>{gather0.take(), gather1.take()};
  EXPECT_EQ(refusal(schedules), "not refused");
  schedules[0].steps[0].target = output(1);
  EXPECT_THAT(refusal(schedules), HasSubstr("source and target differ in size"));
}

TEST(Verify, RejectsReadsOfUnwrittenMemory) {
  auto schedules = exchange();
  schedules[0].steps.erase(schedules[0].steps.begin());
  EXPECT_THAT(refusal(schedules), HasSubstr("rank 0 reads what was never written: hand, step"));
  EXPECT_EQ(refusal(schedules, true), "not refused");  // in place, the output already holds the input
}

TEST(Verify, RejectsAnOutputThatIsNeverWritten) {
  Schedule idle = allreduce(0, 1).take();
  EXPECT_EQ(refusal({idle}), "hand: output chunk 0 of rank 0 is never written");
}

TEST(Verify, RejectsWritesToInput) {
  auto schedules = exchange();
  schedules[0].steps[2].target = input(0);
  EXPECT_EQ(refusal(schedules),
            "rank 0, hand, step 2: recv_reduce input chunk 0 from rank 1: steps never write to input");
}

TEST(Verify, RejectsChunksAndPeersOutOfRange) {
  auto schedules = exchange();
  schedules[0].steps[1].source.first = 1;
  EXPECT_THAT(refusal(schedules), HasSubstr("step 1: send chunk 1 to rank 1: the source is out of range"));
  schedules = exchange();
  schedules[1].steps[2].target.count = 2;
  EXPECT_THAT(refusal(schedules), HasSubstr("recv_reduce chunks 0-1 from rank 0: the target is out of range"));
  schedules = exchange();
  schedules[0].steps[1].peer = 7;
  EXPECT_THAT(refusal(schedules), HasSubstr("the peer is not a rank of the group"));
  schedules = exchange();
  schedules[0].steps[1].peer = 0;
  EXPECT_THAT(refusal(schedules), HasSubstr("a rank cannot send a message to itself"));
  schedules = exchange();
  schedules[0].scratch_sizes = {1};
  EXPECT_THAT(refusal(schedules), HasSubstr("a scratch chunk has the size of chunk 1, which does not exist"));
}

TEST(Verify, RejectsAStepThatReadsWhatItWrites) {
  auto schedules = exchange();
  for (Schedule& schedule : schedules) schedule.scratch_sizes = {0, 0, 0};
  schedules[0].steps.push_back({StepKind::reduce, -1, scratch(0, 2), scratch(1)});
  EXPECT_THAT(refusal(schedules),
              HasSubstr("reduce scratch chunks 0-1 into scratch chunk 1: source and target overlap"));
  schedules[0].steps.back() = {StepKind::copy, -1, scratch(0, 2), scratch(1, 2)};
  EXPECT_THAT(refusal(schedules), HasSubstr("source and target overlap"));
  schedules[0].steps.back() = {StepKind::copy, -1, output(0), output(0)};
  EXPECT_EQ(refusal(schedules), "not refused");  // a copy onto itself does nothing
}

TEST(Verify, RejectsSchedulesOfDifferentGroups) {
  EXPECT_EQ(refusal({}), "there are no schedules");
  auto schedules = exchange();
  std::swap(schedules[0], schedules[1]);
  EXPECT_THAT(refusal(schedules), HasSubstr("of another rank or size"));
  schedules = exchange();
  schedules[1].chunk_count = 2;
  EXPECT_THAT(refusal(schedules), HasSubstr("differ from rank 0's"));
}

TEST(Verify, RejectsInPlaceSchedulesThatAreRightOnlyOutOfPlace) {
  // Rank 0 writes its output before it sends from input: right out of place, wrong in place.
  Builder zero("hand", Collective::allreduce, 0, 2, 1);
  Builder one("hand", Collective::allreduce, 1, 2, 1);
  zero.copy(output(0), input(0)).recv_reduce(1, output(0)).send(1, input(0));
  one.send(0, input(0)).copy(output(0), input(0)).recv_reduce(0, output(0));
  const auto schedules = std::vector<Schedule>{zero.take(), one.take()};
  EXPECT_EQ(refusal(schedules, false), "not refused");
  EXPECT_EQ(refusal(schedules, true), "hand: output chunk 0 of rank 1 has chunk 0 of rank 1 twice");
}

TEST(Verify, ReportsOnlyLeftFoldsInRankOrder) {
  const auto fold_on_root = [](bool pairs_first) {
    std::vector<Schedule> schedules;
    Builder root("hand", Collective::reduce, 0, 4, 1);
    for (int i = 0; i < 6; ++i) root.new_scratch(0);
    root.copy(scratch(0), input(0)).recv(1, scratch(1)).recv(2, scratch(2)).recv(3, scratch(3));
    if (pairs_first) {  // (0 1) (2 3): in rank order, but the right half is folded first
      root.reduce(scratch(4), scratch(0, 2)).reduce(scratch(5), scratch(2, 2)).reduce(output(0), scratch(4, 2));
    } else {
      root.reduce(output(0), scratch(0, 4));
    }
    schedules.push_back(root.take());
    for (int rank = 1; rank < 4; ++rank) {
      schedules.push_back(Builder("hand", Collective::reduce, rank, 4, 1).send(0, input(0)).take());
    }
    return verify(schedules)->folds_in_rank_order;
  };
  EXPECT_TRUE(fold_on_root(false));
  EXPECT_FALSE(fold_on_root(true));
}

TEST(Verify, ReportsWhetherAllRanksGetTheSameBits) {
  EXPECT_TRUE(verify(exchange())->same_bits_everywhere);
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 3; ++rank) {  // each begins with its own: (0 1) 2, (1 2) 0, (2 0) 1
    auto step = allreduce(rank, 3);
    const int next = (rank + 1) % 3;
    const int last = (rank + 2) % 3;
    step.copy(output(0), input(0)).send(next, input(0)).send(last, input(0));
    schedules.push_back(step.recv_reduce(next, output(0)).recv_reduce(last, output(0)).take());
  }
  const auto report = verify(schedules);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_FALSE(report->same_bits_everywhere);
}

// ---- Simulate ----

TEST(Simulate, AddsUpCopyMessageAndReduction) {
  const CostModel model{.alpha_s = 1, .beta_s = 0.5, .gamma_s = 0.25, .copy_s = 0.125, .slice_bytes = 1000};
  const auto run = simulate(exchange(), 8, model);
  EXPECT_EQ(run.seconds, 8 * 0.125 + 1 + 8 * 0.5 + 8 * 0.25);
  EXPECT_EQ(run.bytes_sent, 16);
}

TEST(Simulate, PaysAlphaForEverySlice) {
  const CostModel model{.alpha_s = 1, .beta_s = 0, .gamma_s = 0, .copy_s = 0, .slice_bytes = 2};
  EXPECT_EQ(simulate(exchange(), 8, model).seconds, 4);
  EXPECT_EQ(simulate(exchange(), 0, model).seconds, 1);  // an empty message is a message
}

TEST(Simulate, RankSendsOneSliceAtATime) {
  Builder root("hand", Collective::broadcast, 0, 4, 1);
  std::vector<Schedule> schedules;
  for (int rank = 1; rank < 4; ++rank) root.send(rank, input(0));
  schedules.push_back(root.copy(output(0), input(0)).take());
  for (int rank = 1; rank < 4; ++rank) {
    schedules.push_back(Builder("hand", Collective::broadcast, rank, 4, 1).recv(0, output(0)).take());
  }
  const CostModel model{.alpha_s = 1, .beta_s = 0, .gamma_s = 0, .copy_s = 0, .slice_bytes = 1000};
  EXPECT_THAT(simulate(schedules, 8, model).rank_seconds, ElementsAre(3, 1, 2, 3));
}

// ---- Describe ----

TEST(Describe, FormatsStepsAsErrorsQuoteThem) {
  auto step = allreduce(2, 4, 4);
  step.new_scratch(0);
  step.copy(output(3), input(3)).send(3, input(0, 2)).recv_reduce(1, output(3)).reduce(output(1), scratch(0));
  const Schedule schedule = step.take();
  EXPECT_EQ(describe(schedule, 2), "hand, step 2: recv_reduce chunk 3 from rank 1");
  EXPECT_EQ(describe(schedule),
            "allreduce by hand, rank 2 of 4\n"
            "  step 0  copy input chunk 3 to chunk 3\n"
            "  step 1  send input chunks 0-1 to rank 3\n"
            "  step 2  recv_reduce chunk 3 from rank 1\n"
            "  step 3  reduce scratch chunk 0 into chunk 1\n");
}

TEST(Describe, ShowsAllRanksSideBySide) {
  auto schedules = exchange();
  schedules[1].steps.resize(2);
  EXPECT_EQ(describe(schedules),
            "step  rank 0            rank 1\n"
            "0     copy 0 = in0      copy 0 = in0\n"
            "1     send 0 >1         send 0 >0\n"
            "2     recv_reduce 0 <1\n");
}

}  // namespace
}  // namespace fdl
