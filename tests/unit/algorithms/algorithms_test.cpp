// Tests of the algorithms: every row of the catalog is proved for many sizes, roots and hosts. The verifier itself is
// tested by mutation. The choice between rows is tested too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "algorithms/catalog.h"
#include "algorithms/choice/choose.h"
#include "schedule/order.h"
#include "schedule/print/describe.h"
#include "schedule/proof/simulate.h"
#include "schedule/proof/verify.h"
#include "tests/support/interpreter.h"
#include "tests/support/mutation.h"

namespace fdl {
namespace {

using testing::HasSubstr;

// The levels of a group, from the innermost outwards: their product is the number of ranks. Empty: one level.
using Levels = std::vector<int>;

std::vector<Schedule> write_all(const Algorithm& algorithm, int size, int root = 0, const Levels& levels = {}) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < size; ++rank) {
    schedules.push_back(algorithm.write({.collective = algorithm.collective,
                                         .rank = rank,
                                         .size = size,
                                         .root = root,
                                         .ranks_per_host = levels.empty() ? 1 : levels.front(),
                                         .levels = levels}));
  }
  return schedules;
}

const Algorithm& row(Collective collective, std::string_view name) { return **find_algorithm(collective, name); }

std::string label(const Algorithm& algorithm, int size) {
  return std::string(name_of(algorithm.collective)) + " by " + std::string(algorithm.name) + ", " +
         std::to_string(size) + " ranks";
}

bool has_root(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast || collective == Collective::gather ||
         collective == Collective::scatter;
}

std::vector<int> roots_of(const Algorithm& algorithm, int size) {
  if (!has_root(algorithm.collective)) return {0};
  std::vector<int> roots;
  const int stride = size <= 17 ? 1 : size / 4;
  for (int root = 0; root < size; root += stride) roots.push_back(root);
  if (size > 17) roots.push_back(size - 1);
  return roots;
}

// Adds every way to write `size` as a product of factors above 1, in every order, behind `inside`.
void add_products(int size, Levels& inside, std::vector<Levels>& all) {
  if (size == 1) all.push_back(inside);
  for (int factor = 2; factor <= size; ++factor) {
    if (size % factor != 0) continue;
    inside.push_back(factor);
    add_products(size / factor, inside, all);
    inside.pop_back();
  }
}

std::vector<Levels> levels_of(const Algorithm& algorithm, int size) {
  std::vector<Levels> all{{}};
  if (algorithm.name == "multi_level" && size > 1) {
    Levels inside;
    add_products(size, inside, all);
  }
  for (int per_host = 2; algorithm.name == "two_level" && per_host <= size; ++per_host) {
    if (size % per_host == 0) all.push_back({per_host, size / per_host});
  }
  return all;
}

void prove(const Algorithm& algorithm, int size, int root, const Levels& levels, bool in_place) {
  const auto schedules = write_all(algorithm, size, root, levels);
  const auto report = verify(schedules, in_place);
  ASSERT_TRUE(report.ok()) << label(algorithm, size) << ", root " << root << ", in place " << in_place << ": "
                           << report.status().text();
  if (!algorithm.needs_commutative) {
    ASSERT_TRUE(report->folds_in_rank_order) << label(algorithm, size);
  }
  // Model replicas that add up their sums must stay equal bit for bit.
  ASSERT_TRUE(report->same_bits_everywhere) << label(algorithm, size);
  for (const Schedule& schedule : schedules) ASSERT_EQ(schedule.name, algorithm.name);
}

// ---- Proofs ----

TEST(Catalog, EveryRowComputesWhatItsCollectivePromises) {
  std::vector<int> sizes;
  for (int size = 1; size <= 33; ++size) sizes.push_back(size);
  for (const int size : {48, 63, 64, 65}) sizes.push_back(size);
  const auto start = std::chrono::steady_clock::now();
  int pairs = 0;
  int runs = 0;
  for (const Algorithm& algorithm : catalog()) {
    for (const int size : sizes) {
      if (!fits(algorithm, size)) continue;
      ++pairs;
      for (const int root : roots_of(algorithm, size)) {
        for (const Levels& levels : levels_of(algorithm, size)) {
          for (const bool in_place : {false, true}) {
            if (in_place && !algorithm.in_place) continue;
            ASSERT_NO_FATAL_FAILURE(prove(algorithm, size, root, levels, in_place));
            ++runs;
          }
        }
      }
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("verifier: %d (algorithm, ranks) pairs proved in %.1f s (%d runs: roots, hosts, in place)\n", pairs,
              took.count(), runs);
}

// The interpreter shares no code with the verifier and must accept the same rows.
TEST(Catalog, EveryRowComputesTheRightNumbersInMemory) {
  for (const Algorithm& algorithm : catalog()) {
    for (int size = 1; size <= 9; ++size) {
      if (!fits(algorithm, size)) continue;
      for (const int root : roots_of(algorithm, size)) {
        for (const Levels& levels : levels_of(algorithm, size)) {
          for (const bool in_place : {false, true}) {
            if (in_place && !algorithm.in_place) continue;
            test::Interpreter interpreter(write_all(algorithm, size, root, levels), in_place, 1);
            EXPECT_TRUE(interpreter.leaves_the_right_result()) << label(algorithm, size) << ", root " << root;
          }
        }
      }
    }
  }
}

// ---- The verifier, by mutation ----

struct MutationCount {
  int mutations = 0;
  int refused = 0;
  int still_right = 0;  // accepted by the verifier and right in three runs with real numbers
  int too_strict = 0;   // refused although the numbers are right, for example because junk is read and overwritten
};

void mutate_row(const Algorithm& algorithm, int size, bool in_place, std::mt19937_64& random, MutationCount& count) {
  const Levels levels = size == 8 ? Levels{2, 2, 2} : size % 2 == 0 ? Levels{2, size / 2} : Levels{};
  const auto correct = write_all(algorithm, size, size / 2, levels);
  for (int i = 0; i < 150; ++i) {
    auto mutant = correct;
    const std::string what = test::mutate(mutant, random);
    if (test::same_steps(mutant, correct)) continue;
    ++count.mutations;
    const bool accepted = verify(mutant, in_place).ok();
    bool right = true;
    for (int run = 0; right && run < 3; ++run) {
      right = test::Interpreter(mutant, in_place, random()).leaves_the_right_result();
    }
    ASSERT_TRUE(!accepted || right) << label(algorithm, size) << ", in place " << in_place
                                    << ": passed, but wrong: " << what;
    ++(accepted ? count.still_right : count.refused);
    if (!accepted && right) ++count.too_strict;
  }
}

TEST(Verifier, RejectsEveryHarmfulMutation) {
  constexpr uint64_t kSeed = 20240229;
  std::mt19937_64 random(kSeed);
  MutationCount count;
  for (const Algorithm& algorithm : catalog()) {
    for (const int size : {2, 3, 4, 5, 6, 8}) {
      if (!fits(algorithm, size)) continue;
      for (const bool in_place : {false, true}) {
        if (in_place && !algorithm.in_place) continue;
        ASSERT_NO_FATAL_FAILURE(mutate_row(algorithm, size, in_place, random, count)) << "seed " << kSeed;
      }
    }
  }
  std::printf(
      "verifier: %d mutations, %d refused, %d left the result right (seed %llu; %d refused with right numbers)\n",
      count.mutations, count.refused, count.still_right, static_cast<unsigned long long>(kSeed), count.too_strict);
  EXPECT_GT(count.mutations, 30000);
  EXPECT_GT(count.refused, count.mutations / 2);
}

// ---- Properties of the rows ----

TEST(Catalog, ExactlyTheRowsForRankOrderFoldInRankOrder) {
  for (const Algorithm& algorithm : catalog()) {
    const bool folds = algorithm.collective == Collective::allreduce || algorithm.collective == Collective::reduce ||
                       algorithm.collective == Collective::reduce_scatter;
    if (!folds) continue;
    const auto report = verify(write_all(algorithm, 8));
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->folds_in_rank_order, !algorithm.needs_commutative) << label(algorithm, 8);
  }
}

TEST(Catalog, HasTwoRowsForEachCollectiveWithDistinctNames) {
  for (int collective = 0; collective < kCollectiveCount; ++collective) {
    std::vector<std::string_view> names;
    for (const Algorithm& algorithm : catalog()) {
      if (algorithm.collective == static_cast<Collective>(collective)) names.push_back(algorithm.name);
    }
    EXPECT_GE(names.size(), 2u) << name_of(static_cast<Collective>(collective));
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  }
}

// Each peer is a connection. The pairwise exchange has p-1 of them.
TEST(Catalog, TwoLevelAlltoallHasOnePeerOnEachOtherHost) {
  const auto schedules = write_all(row(Collective::alltoall, "two_level"), 32, 0, {4, 8});
  for (const Schedule& schedule : schedules) {
    std::vector<int> expected;
    for (int peer = 0; peer < 32; ++peer) {
      const bool is_inside = peer / 4 == schedule.rank / 4;
      if (peer != schedule.rank && (is_inside || peer % 4 == schedule.rank % 4)) expected.push_back(peer);
    }
    std::vector<int> peers;
    for (const Step& step : schedule.steps) {
      if (step.peer >= 0) peers.push_back(step.peer);
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    EXPECT_EQ(peers, expected) << "rank " << schedule.rank;
  }
}

TEST(Catalog, UnknownNameErrorListsTheNames) {
  const auto found = find_algorithm(Collective::reduce, "rnig");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::invalid_argument);
  EXPECT_EQ(found.status().text(), "reduce has no algorithm 'rnig'; it has: binomial_tree, direct");
}

TEST(Catalog, RowsForPowersOfTwoFitOnlyPowersOfTwo) {
  const Algorithm& doubling = row(Collective::allgather, "recursive_doubling");
  EXPECT_TRUE(fits(doubling, 8));
  EXPECT_FALSE(fits(doubling, 6));
  EXPECT_FALSE(fits(doubling, 0));
}

int32_t rounds_of(Collective collective, std::string_view name, int size) {
  return verify(write_all(row(collective, name), size))->rounds;
}

TEST(Catalog, ChainsOfMessagesHaveTheLengthOfTheLiterature) {
  EXPECT_EQ(rounds_of(Collective::allreduce, "ring", 8), 14);
  EXPECT_EQ(rounds_of(Collective::allreduce, "recursive_doubling", 8), 3);
  EXPECT_EQ(rounds_of(Collective::allreduce, "recursive_doubling", 15), 5);
  EXPECT_EQ(rounds_of(Collective::allreduce, "halving_doubling", 8), 6);
  EXPECT_EQ(rounds_of(Collective::allreduce, "direct", 8), 2);
  EXPECT_EQ(rounds_of(Collective::allreduce, "bruck", 15), 8);
  EXPECT_EQ(rounds_of(Collective::reduce_scatter, "bruck", 15), 4);
  EXPECT_EQ(rounds_of(Collective::allgather, "bruck", 16), 4);
  EXPECT_EQ(rounds_of(Collective::alltoall, "bruck", 16), 4);
  EXPECT_EQ(rounds_of(Collective::barrier, "dissemination", 9), 4);
  EXPECT_EQ(rounds_of(Collective::broadcast, "binomial_tree", 16), 4);
}

TEST(Ring, SendsEachChunkOnceInEachHalf) {
  const auto report = verify(write_all(row(Collective::allreduce, "ring"), 8));
  EXPECT_EQ(report->messages, 8 * 14);
}

TEST(Ring, HasOnlySliceDependencies) {
  for (const Collective collective : {Collective::allreduce, Collective::reduce_scatter, Collective::allgather}) {
    for (const bool in_place : {false, true}) {
      for (const Schedule& schedule : write_all(row(collective, "ring"), 5)) {
        for (const auto& dependencies : order(schedule, in_place)) {
          for (const Dependency& dependency : dependencies) EXPECT_FALSE(dependency.whole) << describe(schedule);
        }
      }
    }
  }
}

TEST(Pairwise, IsRefusedInPlaceAsADeadlock) {
  const Algorithm& pairwise = row(Collective::alltoall, "pairwise");
  EXPECT_FALSE(pairwise.in_place);
  const auto report = verify(write_all(pairwise, 4), true);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.status().text(), HasSubstr("deadlock"));
}

TEST(DoubleBinaryTree, NoRankIsAnInnerNodeOfBothTrees) {
  for (int size = 2; size <= 65; ++size) {
    for (const Schedule& schedule : write_all(row(Collective::allreduce, "double_binary_tree"), size)) {
      bool inside[2] = {false, false};
      for (const Step& step : schedule.steps) {
        if (step.kind == StepKind::recv_reduce) inside[step.target.first] = true;
      }
      EXPECT_FALSE(inside[0] && inside[1]) << size << " ranks, rank " << schedule.rank;
    }
  }
}

TEST(TwoLevel, SendsTwoTimesHostsMinusOneMessagesAcrossHosts) {
  constexpr int kHosts = 3;
  constexpr int kLocals = 4;
  const auto schedules = write_all(row(Collective::allreduce, "two_level"), kHosts * kLocals, 0, {kLocals, kHosts});
  for (const Schedule& schedule : schedules) {
    int across = 0;
    for (const Step& step : schedule.steps) {
      if (step.kind == StepKind::send && step.peer / kLocals != schedule.rank / kLocals) ++across;
    }
    EXPECT_EQ(across, 2 * (kHosts - 1));
  }
}

// ---- Simulated time ----

// A cost model of messages only, each in one slice, as in the literature.
CostModel messages_only() {
  return {.alpha_s = 5e-6, .beta_s = 1e-9, .gamma_s = 0, .copy_s = 0, .slice_bytes = 1 << 30};
}

double simulated_s(Collective collective, std::string_view name, int size, int64_t bytes, const CostModel& model) {
  return simulate(write_all(row(collective, name), size), bytes, model).seconds;
}

TEST(Simulate, AgreesWithClosedFormsForMessagesOfOneSlice) {
  const CostModel model = messages_only();
  constexpr double kBytes = 1 << 20;
  const double alpha = model.alpha_s;
  const double beta = model.beta_s;
  constexpr double kTolerance = 1e-12;
  EXPECT_NEAR(simulated_s(Collective::allreduce, "ring", 8, 1 << 20, model), 14 * (alpha + kBytes / 8 * beta),
              kTolerance);
  EXPECT_NEAR(simulated_s(Collective::allreduce, "recursive_doubling", 8, 1 << 20, model), 3 * (alpha + kBytes * beta),
              kTolerance);
  EXPECT_NEAR(simulated_s(Collective::allreduce, "halving_doubling", 8, 1 << 20, model),
              6 * alpha + 2 * 7 * kBytes / 8 * beta, kTolerance);
  EXPECT_NEAR(simulated_s(Collective::broadcast, "binomial_tree", 8, 1 << 20, model), 3 * (alpha + kBytes * beta),
              kTolerance);
  EXPECT_NEAR(simulated_s(Collective::broadcast, "chain", 8, 1 << 20, model), 7 * (alpha + kBytes * beta), kTolerance);
  EXPECT_NEAR(simulated_s(Collective::alltoall, "pairwise", 8, 1 << 20, model), 7 * (alpha + kBytes / 8 * beta),
              kTolerance);
  EXPECT_NEAR(simulated_s(Collective::barrier, "dissemination", 8, 0, model), 3 * alpha, kTolerance);
}

TEST(Simulate, StreamedChainCostsOneTransferPlusHops) {
  CostModel model = messages_only();
  model.slice_bytes = 1 << 16;
  const double slice_s = model.alpha_s + model.slice_bytes * model.beta_s;
  EXPECT_NEAR(simulated_s(Collective::broadcast, "chain", 8, 1 << 20, model), (16 + 8 - 2) * slice_s, 1e-12);
}

double simulated_as_s(std::string_view name, Pipelining pipelining) {
  auto schedules = write_all(row(Collective::allreduce, name), 8);
  for (Schedule& schedule : schedules) schedule.pipelining = pipelining;
  return simulate(schedules, 64 << 20, CostModel{}).seconds;
}

// Trees forward slices. The rounds of a butterfly use different ranges, so it cannot stream.
TEST(Simulate, StreamingSpeedsUpTreesButNotButterflies) {
  for (const auto tree : {"binomial_tree", "double_binary_tree"}) {
    EXPECT_LT(1.5 * simulated_as_s(tree, Pipelining::stream), simulated_as_s(tree, Pipelining::rounds)) << tree;
  }
  const double rounds_s = simulated_as_s("halving_doubling", Pipelining::rounds);
  EXPECT_NEAR(simulated_as_s("halving_doubling", Pipelining::stream), rounds_s, 0.01 * rounds_s);
}

TEST(Simulate, CountsTheBytesOfARing) {
  const auto run = simulate(write_all(row(Collective::allreduce, "ring"), 8), 8 << 20, CostModel{});
  EXPECT_EQ(run.bytes_sent, 8 * 14 * (1 << 20));
  EXPECT_EQ(run.rank_seconds.size(), 8u);
}

// verify() proves that whole steps cannot deadlock. This test shows it for slices with one staged slice per lane.
TEST(Simulate, EveryRowFinishesWithOneStagedSlicePerLane) {
  for (const Algorithm& algorithm : catalog()) {
    for (int size = 1; size <= 17; ++size) {
      if (!fits(algorithm, size)) continue;
      for (const Levels& levels : levels_of(algorithm, size)) {
        for (const bool in_place : {false, true}) {
          if (in_place && !algorithm.in_place) continue;
          const CostModel model{.slice_bytes = 1000, .staging_slices = 1};
          const auto run = simulate(write_all(algorithm, size, size / 2, levels), 3500 * size, model, in_place);
          EXPECT_LT(run.seconds, 1) << label(algorithm, size) << ", in place " << in_place;
        }
      }
    }
  }
}

// In place, a rank sends the same memory that receives the sum.
TEST(Simulate, ExchangeInRoundsNeedsStagingForAWholeStep) {
  auto schedules = write_all(row(Collective::allreduce, "recursive_doubling"), 2);
  for (Schedule& schedule : schedules) schedule.pipelining = Pipelining::rounds;
  CostModel model{.slice_bytes = 1000, .staging_slices = 1};
  EXPECT_EQ(simulate(schedules, 4000, model, true).seconds, INFINITY);
  model.staging_slices = 4;
  EXPECT_LT(simulate(schedules, 4000, model, true).seconds, 1);
}

// ---- Choice ----

std::string_view chosen(Collective collective, GroupShape shape, int64_t bytes) {
  return choose(collective, shape, bytes)->algorithm->name;
}

GroupShape hosts_of_one(int ranks) { return {.ranks = ranks, .hosts = ranks, .ranks_per_host = 1}; }

TEST(Choose, PrefersFewMessagesForShortVectorsAndFewBytesForLongOnes) {
  EXPECT_EQ(chosen(Collective::allreduce, hosts_of_one(8), 64), "recursive_doubling");
  EXPECT_EQ(chosen(Collective::allreduce, hosts_of_one(8), 32 << 10), "halving_doubling");
  EXPECT_EQ(chosen(Collective::allreduce, hosts_of_one(8), 64 << 20), "ring");
  EXPECT_EQ(chosen(Collective::allreduce, hosts_of_one(2), 64), "recursive_doubling");
  EXPECT_EQ(chosen(Collective::allreduce, hosts_of_one(2), 64 << 20), "ring");
  EXPECT_EQ(chosen(Collective::broadcast, hosts_of_one(8), 64), "binomial_tree");
  EXPECT_EQ(chosen(Collective::broadcast, hosts_of_one(8), 64 << 20), "chain");
  EXPECT_EQ(chosen(Collective::alltoall, hosts_of_one(8), 64), "pairwise");
  EXPECT_EQ(choose(Collective::alltoall, hosts_of_one(8), 64, "auto", false, true, true)->algorithm->name, "bruck");
  EXPECT_EQ(chosen(Collective::barrier, hosts_of_one(8), 0), "dissemination");
}

TEST(Choose, PrefersTwoLevelForLongVectorsOnHostsWithSeveralRanks) {
  const GroupShape shape{.ranks = 32, .hosts = 4, .ranks_per_host = 8};
  EXPECT_EQ(chosen(Collective::allreduce, shape, 16 << 20), "two_level");
  EXPECT_EQ(chosen(Collective::allreduce, shape, 64), "recursive_doubling");
  const GroupShape ragged{.ranks = 31, .hosts = 4, .ranks_per_host = 0};
  EXPECT_NE(chosen(Collective::allreduce, ragged, 16 << 20), "two_level");
}

TEST(Choose, PrefersTwoLevelForAnAlltoallOfShortEqualChunksBetweenHosts) {
  const GroupShape shape{.ranks = 256, .hosts = 32, .ranks_per_host = 8};
  EXPECT_EQ(choose(Collective::alltoall, shape, 64 << 10, "auto", false, true, true)->algorithm->name, "two_level");
  EXPECT_EQ(chosen(Collective::alltoall, shape, 64 << 10), "pairwise") << "chunks of unlike sizes";
}

TEST(Choose, PrefersFewRoundsAtHighLatency) {
  GroupShape far = hosts_of_one(4);
  far.latency_s = 1e-3;
  far.beta_s = 8e-9;
  EXPECT_EQ(chosen(Collective::allreduce, far, 64), "recursive_doubling");
  // Two rounds; all messages of a round are in flight at once.
  EXPECT_EQ(chosen(Collective::allreduce, far, 256 << 10), "direct");
  EXPECT_EQ(chosen(Collective::allreduce, far, 64 << 20), "ring");
  EXPECT_EQ(chosen(Collective::gather, far, 64), "direct");
  EXPECT_EQ(chosen(Collective::broadcast, far, 64), "binomial_tree");
}

TEST(Choose, UsesRankOrderForDeterministicAndNonCommutativeCalls) {
  for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
    for (const int64_t bytes : {int64_t{8}, int64_t{1} << 26}) {
      EXPECT_FALSE(choose(collective, hosts_of_one(7), bytes, "auto", true)->algorithm->needs_commutative);
      EXPECT_FALSE(choose(collective, hosts_of_one(7), bytes, "auto", false, false)->algorithm->needs_commutative);
    }
  }
  const auto refused = choose(Collective::allreduce, hosts_of_one(7), 8, "ring", true);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().text(),
              HasSubstr("allreduce by ring cannot run here (7 ranks): it does not fold in rank order; these can: "
                        "direct"));
}

TEST(Choose, UsesAGivenNameOrListsTheRowsThatCanRun) {
  EXPECT_EQ(choose(Collective::allreduce, hosts_of_one(8), 8, "ring")->algorithm->name, "ring");
  EXPECT_THAT(choose(Collective::allreduce, hosts_of_one(8), 8, "magic").status().text(),
              HasSubstr("it has: ring, recursive_doubling"));
  EXPECT_THAT(choose(Collective::allgather, hosts_of_one(6), 8, "recursive_doubling").status().text(),
              HasSubstr("it needs a power of two; these can: ring, bruck, multi_level, direct"));
  EXPECT_THAT(choose(Collective::alltoall, hosts_of_one(6), 8, "bruck").status().text(),
              HasSubstr("it needs chunks of one size; these can: pairwise"));
}

TEST(Choose, ExplainsTheChoiceInNumbers) {
  const auto choice = choose(Collective::allreduce, hosts_of_one(8), 64);
  EXPECT_EQ(choice->why,
            "8 ranks on 8 hosts, 64 bytes: recursive_doubling should take 15.1 us, halving_doubling 30.1 us (alpha 5.0 "
            "us, 2.00 GB/s)");
}

TEST(Choose, FindsARowForEveryCollectiveAndSize) {
  for (int collective = 0; collective < kCollectiveCount; ++collective) {
    for (int ranks = 1; ranks <= 65; ++ranks) {
      for (const int64_t bytes : {int64_t{0}, int64_t{1} << 10, int64_t{1} << 30}) {
        const auto choice = choose(static_cast<Collective>(collective), hosts_of_one(ranks), bytes);
        ASSERT_TRUE(choice.ok()) << choice.status().text();
        EXPECT_TRUE(fits(*choice->algorithm, ranks));
      }
    }
  }
}

// On one host the models of choose() and simulate() differ only by the rounding to slices.
TEST(Choose, IsAtMostHalfSlowerThanTheBestSimulatedTime) {
  for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::broadcast,
                                      Collective::allgather, Collective::reduce_scatter}) {
    for (const int ranks : {2, 3, 4, 7, 8, 13, 16}) {
      const GroupShape shape{.ranks = ranks, .hosts = 1, .ranks_per_host = ranks};
      for (int64_t bytes = 64; bytes <= 64 << 20; bytes *= 32) {
        const auto choice = choose(collective, shape, bytes);
        double best_s = INFINITY;
        for (const Algorithm& algorithm : catalog()) {
          if (algorithm.collective != collective || !fits(algorithm, ranks)) continue;
          best_s = std::min(best_s, simulated_s(collective, algorithm.name, ranks, bytes, CostModel{}));
        }
        const double chosen_s = simulated_s(collective, choice->algorithm->name, ranks, bytes, CostModel{});
        EXPECT_LE(chosen_s, 1.5 * best_s) << name_of(collective) << ", " << choice->why;
      }
    }
  }
}

}  // namespace
}  // namespace fdl
