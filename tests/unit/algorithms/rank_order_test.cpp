// Tests of the order of ranks along the network, and of schedules that are written for it: every row of the catalog is
// proved in random orders.
#include "algorithms/choice/rank_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <set>

#include "algorithms/choice/choose.h"
#include "schedule/order.h"
#include "schedule/proof/verify.h"
#include "schedule/renumber.h"
#include "tests/support/interpreter.h"

namespace fdl {
namespace {

using Numbers = std::vector<int>;

RankLevels order_by(std::vector<Numbers> depths) { return order_ranks(depths); }

// ---- The order ----

TEST(RankOrder, IsThatOfTheRanksWhereGroupsAreBlocks) {
  const RankLevels found = order_by({{0, 0, 0, 0, 1, 1, 1, 1}, {5, 5, 6, 6, 5, 5, 6, 6}});
  EXPECT_TRUE(found.order.is_by_rank());
  EXPECT_EQ(found.order.rank(5), 5);
  EXPECT_EQ(found.order.position(5), 5);
  EXPECT_EQ(found.hosts, 4) << "equal numbers in unlike racks are other hosts";
  EXPECT_EQ(found.ranks_per_host, 2);
  EXPECT_EQ(found.levels, (Numbers{2, 2, 2}));
}

// The drawing in rank_order.h.
TEST(RankOrder, MakesNeighboursOfTheRanksOfAGroupAtEveryLevel) {
  const RankLevels found = order_by({{0, 1, 0, 0, 1, 0}, {0, 1, 2, 0, 1, 2}});
  EXPECT_EQ(found.order.rank_at, (Numbers{0, 3, 2, 5, 1, 4}));
  for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(found.order.rank(found.order.position(rank)), rank);
  EXPECT_EQ(found.hosts, 3);
  EXPECT_EQ(found.levels, (Numbers{2, 3})) << "racks of 4 and of 2 ranks are no level";
}

TEST(RankOrder, LeavesOutLevelsOfUnlikeSizeAndKeepsTheOthers) {
  // 12 ranks, one a host; racks of 3, 3, 2 and 4 hosts, in two zones of 6.
  const Numbers zones{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1};
  const Numbers racks{0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3};
  Numbers hosts(12);
  std::iota(hosts.begin(), hosts.end(), 0);
  EXPECT_EQ(order_by({zones, racks, hosts}).levels, (Numbers{6, 2}));
  const RankLevels uneven = order_by({racks, hosts});
  EXPECT_EQ(uneven.levels, (Numbers{12}));
  EXPECT_EQ(uneven.ranks_per_host, 1);
}

TEST(RankOrder, HasNoLevelsWhereHostsHaveUnlikeNumbersOfRanks) {
  const RankLevels found = order_by({{0, 1, 0, 0}});
  EXPECT_EQ(found.ranks_per_host, 0);
  EXPECT_EQ(found.hosts, 2);
  EXPECT_TRUE(found.levels.empty());
  EXPECT_EQ(found.order.rank_at, (Numbers{0, 2, 3, 1}));
}

TEST(RankOrder, OfOneRankHasNoLevels) {
  EXPECT_TRUE(order_by({{0}, {3}}).levels.empty());
  EXPECT_EQ(order_by({{0}}).ranks_per_host, 1);
}

// Memory groups of one host are neighbours, and the host is a level.
TEST(RankOrder, OneHostWithTwoMemoryGroupsIsALevelOfItsOwn) {
  EXPECT_EQ(order_by({{0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 1, 1, 0, 0, 1, 1}}).levels, (Numbers{2, 2, 2}));
}

TEST(Locations, GiveTheGroupsOfEachDepth) {
  const std::vector<std::string> locations{"a/r1", "a/r2", "b", "b/r1"};
  const auto depths = groups_of_locations(locations, Numbers{0, 1, 2, 3, -1});
  ASSERT_EQ(depths.size(), 2u);
  EXPECT_EQ(std::set<int>(depths[0].begin(), depths[0].end()).size(), 3u) << "a, b, and not known";
  EXPECT_EQ(depths[0][0], depths[0][1]);
  EXPECT_EQ(depths[0][2], depths[0][3]);
  EXPECT_NE(depths[1][0], depths[1][1]);
  EXPECT_EQ(depths[1][0], depths[1][3]) << "r1 of a and r1 of b differ by the depth before";
  EXPECT_NE(depths[1][2], depths[1][3]) << "a host of b in no rack";
  EXPECT_TRUE(groups_of_locations({}, Numbers{-1, -1}).empty());
}

TEST(Levels, TheInnermostCommonOneIsFound) {
  const Numbers levels{2, 3, 4};
  EXPECT_EQ(level_between(levels, 0, 1), 0);
  EXPECT_EQ(level_between(levels, 0, 5), 1);
  EXPECT_EQ(level_between(levels, 5, 6), 2);
  EXPECT_EQ(level_between(levels, 0, 23), 2);
}

// ---- Schedules in the order ----

// A random network: every rank is in a random group of every depth, or all groups are equally large.
std::vector<Numbers> random_depths(int ranks, bool is_even, std::mt19937& random) {
  std::vector<Numbers> depths;
  if (!is_even) {
    for (int depth = 0; depth < 3; ++depth) {
      Numbers groups;
      for (int rank = 0; rank < ranks; ++rank) groups.push_back(static_cast<int>(random() % 3));
      depths.push_back(groups);
    }
    return depths;
  }
  Numbers places(static_cast<std::size_t>(ranks));
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), random);
  for (int group = ranks; group > 0;) {
    Numbers groups;
    for (const int place : places) groups.push_back(place / group);
    depths.push_back(groups);
    Numbers divisors;
    for (int divisor = 1; divisor < group; ++divisor) {
      if (group % divisor == 0) divisors.push_back(divisor);
    }
    if (divisors.empty()) break;
    group = divisors[random() % divisors.size()];
  }
  return depths;
}

GroupShape shape_in(const std::vector<Numbers>& depths) {
  RankLevels found = order_ranks(depths);
  return {.ranks = static_cast<int>(depths.front().size()),
          .hosts = found.hosts,
          .ranks_per_host = found.ranks_per_host,
          .order = std::move(found.order),
          .levels = std::move(found.levels)};
}

std::vector<Schedule> write_all(const Algorithm& algorithm, const GroupShape& shape, int root) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < shape.ranks; ++rank) schedules.push_back(write_schedule(algorithm, shape, rank, root));
  return schedules;
}

bool has_root(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast || collective == Collective::gather ||
         collective == Collective::scatter;
}

TEST(Renumbered, EveryRowIsRightInEveryOrder) {
  constexpr unsigned kSeed = 20261130;
  std::mt19937 random(kSeed);
  int proofs = 0;
  int orders = 0;
  for (int ranks = 1; ranks <= 24; ++ranks) {
    for (int network = 0; network < 18; ++network) {
      const GroupShape shape = shape_in(random_depths(ranks, network % 2 == 0, random));
      orders += shape.order.is_by_rank() ? 0 : 1;
      for (const Algorithm& algorithm : catalog()) {
        if (!fits(algorithm, ranks)) continue;
        const int root = has_root(algorithm.collective) ? static_cast<int>(random() % static_cast<unsigned>(ranks)) : 0;
        const auto schedules = write_all(algorithm, shape, root);
        for (const Schedule& schedule : schedules) ASSERT_TRUE(schedule.root == root) << algorithm.name;
        for (const bool in_place : {false, true}) {
          if (in_place && !algorithm.in_place) continue;
          const auto report = verify(schedules, in_place);
          ASSERT_TRUE(report.ok()) << name_of(algorithm.collective) << " by " << algorithm.name << ", " << ranks
                                   << " ranks, network " << network << ", seed " << kSeed << ": "
                                   << report.status().text();
          ASSERT_TRUE(report->same_bits_everywhere);
          if (!algorithm.needs_commutative) {
            ASSERT_TRUE(report->folds_in_rank_order) << algorithm.name;
          }
          ++proofs;
        }
        if (ranks > 9) continue;
        ASSERT_TRUE(test::Interpreter(schedules, false, 1).leaves_the_right_result()) << algorithm.name;
      }
    }
  }
  std::printf("verifier: %d proofs in %d orders that are not that of the ranks (seed %u)\n", proofs, orders, kSeed);
  EXPECT_GT(orders, 200);
}

// One rank that has another order than the rest makes the proof fail.
TEST(Renumbered, OfOneRankWithAnotherOrderIsRefused) {
  const GroupShape shape = shape_in({{0, 1, 0, 1, 0, 1, 0, 1}});
  GroupShape other = shape;
  std::swap(other.order.rank_at[2], other.order.rank_at[5]);
  for (const std::string_view name : {"ring", "multi_level", "two_level", "halving_doubling", "binomial_tree"}) {
    const Algorithm& row = **find_algorithm(Collective::allreduce, name);
    auto schedules = write_all(row, shape, 0);
    const int rank = other.order.rank(3);
    schedules[static_cast<std::size_t>(rank)] = write_schedule(row, other, rank);
    for (std::size_t at = 0; at < other.order.rank_at.size(); ++at) {
      other.order.position_of[static_cast<std::size_t>(other.order.rank_at[at])] = static_cast<int>(at);
    }
    schedules[2] = write_schedule(row, other, 2);
    EXPECT_FALSE(verify(schedules).ok()) << name;
  }
}

// How many messages, of all ranks, go from one group of a depth to another.
int crossings(const std::vector<Schedule>& schedules, const Numbers& groups) {
  int count = 0;
  for (const Schedule& schedule : schedules) {
    for (const Step& step : schedule.steps) {
      if (step.kind != StepKind::send) continue;
      count += groups[static_cast<std::size_t>(schedule.rank)] != groups[static_cast<std::size_t>(step.peer)] ? 1 : 0;
    }
  }
  return count;
}

// 24 ranks on 6 hosts in 2 racks of 3, launched one on each host in turn: nothing is a block.
TEST(Renumbered, RingsCrossBetweenTwoGroupsOnceInEachDirection) {
  Numbers hosts;
  Numbers racks;
  for (int rank = 0; rank < 24; ++rank) {
    hosts.push_back(rank % 6);
    racks.push_back(rank % 6 % 2);
  }
  const GroupShape shape = shape_in({racks, hosts});
  EXPECT_EQ(shape.levels, (Numbers{4, 3, 2}));
  const auto ring = write_all(**find_algorithm(Collective::allreduce, "ring"), shape, 0);
  EXPECT_EQ(crossings(ring, racks), 2 * 2 * 23) << "2(p-1) messages over each of two links";
  EXPECT_EQ(crossings(ring, hosts), 6 * 2 * 23);
  const auto levels = write_all(**find_algorithm(Collective::allreduce, "multi_level"), shape, 0);
  EXPECT_EQ(crossings(levels, racks), 24 * 2 * 1) << "2(r-1) messages of each rank between r racks";
  for (const Schedule& schedule : levels) {
    std::set<int> peers;
    for (const Step& step : schedule.steps) {
      if (step.kind == StepKind::send) peers.insert(step.peer);
    }
    EXPECT_EQ(peers.size(), 3u) << "a rank of its host, one of its rack, one of the other rack";
  }
}

TEST(MultiLevel, IsTwoLevelWhereHostsAreTheOnlyGroups) {
  const auto request = [](int rank) {
    return ScheduleRequest{.rank = rank, .size = 12, .ranks_per_host = 4, .levels = {4, 3}};
  };
  const auto write = [&](std::string_view name, int rank) {
    return (*find_algorithm(Collective::allreduce, name))->write(request(rank));
  };
  for (int rank = 0; rank < 12; ++rank) {
    const Schedule multi = write("multi_level", rank);
    const Schedule two = write("two_level", rank);
    ASSERT_EQ(multi.steps.size(), two.steps.size());
    for (std::size_t i = 0; i < multi.steps.size(); ++i) {
      EXPECT_EQ(multi.steps[i].peer, two.steps[i].peer);
      EXPECT_EQ(multi.steps[i].source, two.steps[i].source);
      EXPECT_EQ(multi.steps[i].target, two.steps[i].target);
    }
  }
}

TEST(MultiLevel, SendsAsManyBytesAsARing) {
  const ScheduleRequest request{.collective = Collective::allreduce, .size = 24, .levels = {4, 3, 2}};
  const Algorithm& multi_level = **find_algorithm(Collective::allreduce, "multi_level");
  int32_t sent = 0;
  for (const Step& step : multi_level.write(request).steps) sent += step.kind == StepKind::send ? step.source.count : 0;
  EXPECT_EQ(sent, 2 * 23);
}

// ---- Hosts of a shape ----

TEST(GroupShape, KnowsWhetherHostsAreBlocksOfRanks) {
  const Numbers hosts{0, 0, 1, 1, 2, 2, 3, 3};
  EXPECT_TRUE(has_hosts_in_blocks(shape_in({hosts})));
  // Racks of every other host: another order, and hosts that are blocks all the same.
  const GroupShape racks = shape_in({{0, 0, 1, 1, 0, 0, 1, 1}, hosts});
  EXPECT_FALSE(racks.order.is_by_rank());
  EXPECT_TRUE(has_hosts_in_blocks(racks));
  EXPECT_FALSE(has_hosts_in_blocks(shape_in({{0, 1, 0, 1}})));
}

TEST(GroupShape, BetweenHostsHasTheLevelsOfHosts) {
  const GroupShape shape = shape_in({{0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 1, 1, 2, 2, 3, 3}});
  const GroupShape between = shape_between_hosts(shape);
  EXPECT_EQ(between.ranks, 4);
  EXPECT_EQ(between.levels, (Numbers{2, 2}));
  EXPECT_EQ(between.ranks_per_host, 1);
  // Hosts of one rank are no level of their own.
  EXPECT_EQ(shape_between_hosts(shape_in({{0, 0, 1, 1}, {0, 1, 2, 3}})).levels, (Numbers{2, 2}));
  const GroupShape inside = shape_inside_host(shape);
  EXPECT_EQ(inside.ranks, 2);
  EXPECT_EQ(inside.hosts, 1);
}

// ---- The choice ----

std::string_view chosen(const GroupShape& shape, Collective collective, int64_t bytes) {
  return choose(collective, shape, bytes)->algorithm->name;
}

// A butterfly, which begins with near ranks, is as good where all sizes are powers of two.
TEST(Choose, PrefersMultiLevelWhereRacksAreFar) {
  // 240 ranks: 8 a host, 6 hosts a rack, 5 racks.
  GroupShape shape{.ranks = 240, .hosts = 30, .ranks_per_host = 8, .latency_s = 500e-6, .levels = {8, 6, 5}};
  shape.level_latency_s = {0, 5e-6, 500e-6};
  EXPECT_EQ(chosen(shape, Collective::allreduce, 1 << 20), "multi_level");
  EXPECT_EQ(chosen(shape, Collective::allgather, 1 << 20), "multi_level");
  EXPECT_EQ(chosen(shape, Collective::reduce_scatter, 1 << 20), "multi_level");
  EXPECT_EQ(chosen(shape, Collective::allreduce, 64), "recursive_doubling");
  shape.ranks = 512;
  shape.hosts = 64;
  shape.levels = {8, 8, 8};
  EXPECT_EQ(chosen(shape, Collective::allreduce, 1 << 20), "halving_doubling");
}

TEST(Choose, NeverTakesMultiLevelWithoutLevels) {
  for (const GroupShape& shape :
       {GroupShape{.ranks = 64, .hosts = 8, .ranks_per_host = 8, .levels = {8, 8}},
        GroupShape{.ranks = 64, .hosts = 64, .ranks_per_host = 1, .levels = {64}},
        GroupShape{.ranks = 64, .hosts = 9, .ranks_per_host = 0}, GroupShape{.ranks = 64, .ranks_per_host = 64}}) {
    for (int64_t bytes = 4; bytes <= 1 << 30; bytes *= 16) {
      EXPECT_NE(chosen(shape, Collective::allreduce, bytes), "multi_level");
    }
  }
}

// The eight ranks of a host exchange their shares at once, so each has an eighth of the host's link.
TEST(Choose, CountsThatTheRanksOfAHostShareItsLinkInAnAllreduce) {
  const GroupShape shape{.ranks = 256, .hosts = 32, .ranks_per_host = 8, .levels = {8, 32}};
  const GroupShape between = shape_between_hosts(shape);
  GroupShape alone = between;
  alone.parts = 1;
  const Algorithm& sums = **find_algorithm(Collective::allreduce, "ring");
  const double latency_s = 2 * 31 * shape.alpha_s;
  EXPECT_NEAR(predicted_s(sums, between, 1 << 20) - latency_s, 8 * (predicted_s(sums, alone, 1 << 20) - latency_s),
              1e-9);
  const Algorithm& copies = **find_algorithm(Collective::broadcast, "chain");
  EXPECT_EQ(predicted_s(copies, between, 1 << 20), predicted_s(copies, alone, 1 << 20));
}

// Nine of ten neighbours of a ring are near.
TEST(Choose, CountsTheLatencyOfTheLevelThatAMessageCrosses) {
  const Algorithm& ring = **find_algorithm(Collective::allreduce, "ring");
  GroupShape far{.ranks = 100, .hosts = 100, .latency_s = 1e-3, .levels = {10, 10}};
  const double all_far_s = predicted_s(ring, far, 4);
  far.level_latency_s = {0, 1e-3};
  const double alpha_s = far.alpha_s;
  EXPECT_NEAR(all_far_s, 2 * 99 * (alpha_s + 1e-3), 1e-6);
  EXPECT_NEAR(predicted_s(ring, far, 4), 2 * (99 * alpha_s + 9 * 1e-3), 1e-6);
}

}  // namespace
}  // namespace fdl
