// Tests of the cluster simulation: closed formulas of known algorithms, contention, symmetry, conservation and noise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "algorithms/choice/choose.h"
#include "schedule/builder.h"
#include "simulate/lower_bound.h"
#include "simulate/simulate_collective.h"
#include "tests/unit/simulate/simulated_cluster.h"

namespace fdl {
namespace {

using testing::HasSubstr;

// ---- Closed formulas ----

TEST(SimulatedCluster, RingAllreduceTakesTwoTimesPMinusOneHops) {
  for (const int p : {2, 4, 8, 16, 64}) {
    const double expected = 2 * (p - 1) * hop_s(65536.0 / p);
    EXPECT_EQ(run(row(Collective::allreduce, "ring"), cluster_of(p), 65536, false).seconds, expected) << p;
    EXPECT_EQ(run(row(Collective::allreduce, "ring"), cluster_of(p), 65536, true).seconds, expected) << p;
  }
  EXPECT_DOUBLE_EQ(run(row(Collective::allreduce, "ring"), cluster_of(7), 7 * 4096).seconds, 12 * hop_s(4096));
}

TEST(SimulatedCluster, RecursiveDoublingTakesLogHopsOfTheWholeVector) {
  for (const int p : {2, 4, 8, 64, 256}) {
    const double expected = std::log2(p) * hop_s(4096);
    EXPECT_EQ(run(row(Collective::allreduce, "recursive_doubling"), cluster_of(p), 4096, false).seconds, expected);
    EXPECT_EQ(run(row(Collective::allreduce, "recursive_doubling"), cluster_of(p), 4096, true).seconds, expected);
  }
}

TEST(SimulatedCluster, HalvingDoublingSendsEachHalfTwice) {
  double expected = 0;
  for (int bytes = 2048; bytes >= 256; bytes /= 2) expected += 2 * hop_s(bytes);
  EXPECT_EQ(run(row(Collective::allreduce, "halving_doubling"), cluster_of(16), 4096).seconds, expected);
}

// The root's child with the largest subtree gets the message first. A rank at depth d of the path that is always first
// gets it after d hops; this is the last one, because the sends of one rank are closer to each other than a hop.
TEST(SimulatedCluster, BinomialBroadcastTakesLogHops) {
  for (const int p : {2, 4, 8}) {
    const double rounds = std::log2(p);
    EXPECT_DOUBLE_EQ(run(row(Collective::broadcast, "binomial_tree"), cluster_of(p), 4).seconds, rounds * hop_s(4) + 0)
        << p;
  }
}

// The LogGP pipeline: the first slice takes p - 1 hops, each further one the time of its bytes.
TEST(SimulatedCluster, ChainStreamsSlices) {
  const double slice_s = 65536 / kBytesPerSecond;
  EXPECT_DOUBLE_EQ(run(row(Collective::broadcast, "chain"), cluster_of(5), 65536 * 8, true, 65536).seconds,
                   4 * hop_s(65536) + 7 * slice_s);
}

TEST(SimulatedCluster, ReductionsTakeTimeOfTheReceiver) {
  Cluster cluster = cluster_of(2);
  cluster.reduce_bytes_per_s = 0x1p28;
  EXPECT_EQ(run(row(Collective::allreduce, "recursive_doubling"), cluster, 65536).seconds,
            hop_s(65536) + 65536 / 0x1p28);
}

// Inside hosts slices arrive much faster than a core reduces them. Each that is reduced must go on before the others
// are reduced, else the network is idle meanwhile.
TEST(SimulatedCluster, WaitingReductionsDoNotHoldBackMessages) {
  Cluster cluster = cluster_of(4, 4);
  cluster.local_ports = true;
  cluster.local.bytes_per_s = 0x1p38;
  cluster.reduce_bytes_per_s = 0.8 * kBytesPerSecond;
  constexpr double kChunk = 64 * 65536;
  const double streamed_s = 15 * kChunk / cluster.reduce_bytes_per_s + 15 * kChunk / kBytesPerSecond;
  const double seconds = run(row(Collective::allreduce, "ring"), cluster, 16 * kChunk, true, 65536).seconds;
  EXPECT_GE(seconds, 0.9 * streamed_s);  // the end of one half overlaps with the beginning of the other
  EXPECT_LE(seconds, 1.1 * streamed_s);
}

TEST(SimulatedCluster, OverheadsOfOneRankAddUp) {
  // The root of a direct scatter hands over seven messages one after the other; the last one is on its way then.
  const double bytes_s = 4 / kBytesPerSecond;
  EXPECT_DOUBLE_EQ(run(row(Collective::scatter, "direct"), cluster_of(8), 32).seconds,
                   7 * kOverhead_s + bytes_s + kLatency_s + kOverhead_s);
}

TEST(SimulatedCluster, GapSpacesTheMessagesOfOneRank) {
  Cluster cluster = cluster_of(8);
  cluster.network.gap_s = 0x1p-14;
  EXPECT_DOUBLE_EQ(run(row(Collective::scatter, "direct"), cluster, 32).seconds,
                   kOverhead_s + 6 * 0x1p-14 + 4 / kBytesPerSecond + kLatency_s + kOverhead_s);
}

// ---- Links that are shared ----

TEST(SimulatedCluster, TwoRanksThatShareACardTakeTwiceAsLong) {
  // Two hosts, rank r exchanges with the rank of the same place on the other host.
  const auto exchange = [](const ScheduleRequest& request) {
    Builder step("exchange", Collective::allreduce, request.rank, request.size, 1);
    const int peer = (request.rank + request.size / 2) % request.size;
    return step.send(peer, input(0)).recv(peer, output(0)).take();
  };
  const Algorithm algorithm{.name = "exchange", .collective = Collective::allreduce, .sentence = "", .write = exchange};
  const double hop = kLatency_s + 2 * kOverhead_s;
  EXPECT_EQ(run(algorithm, cluster_of(2, 1), 65536).seconds, hop + 65536 / kBytesPerSecond);
  EXPECT_EQ(run(algorithm, cluster_of(2, 2), 65536).seconds, hop + 2 * 65536 / kBytesPerSecond);
  EXPECT_EQ(run(algorithm, cluster_of(2, 8), 65536).seconds, hop + 8 * 65536 / kBytesPerSecond);
}

TEST(SimulatedCluster, SendersThatMeetAtOneReceiverShareItsCard) {
  const double expected = kOverhead_s + 4 * 4096 / kBytesPerSecond + kLatency_s;
  const double seconds = run(row(Collective::gather, "direct"), cluster_of(5), 5 * 4096).seconds;
  EXPECT_DOUBLE_EQ(seconds, expected + 4 * kOverhead_s);  // the root accepts four messages, one after the other
}

TEST(SimulatedCluster, AnOversubscribedUplinkIsTheLimitBetweenRacks) {
  Cluster cluster = cluster_of(8);
  cluster.switches = {{.name = "rack", .hosts = 4}};
  const Algorithm& doubling = row(Collective::allreduce, "recursive_doubling");
  const double even = run(doubling, cluster, 65536).seconds;
  EXPECT_EQ(even, run(doubling, cluster_of(8), 65536).seconds);
  cluster.switches.front().oversubscription = 2;
  // Only the last of the three rounds leaves the rack, and takes twice as long.
  EXPECT_EQ(run(doubling, cluster, 65536).seconds, even + 65536 / kBytesPerSecond);
  EXPECT_EQ(run(doubling, cluster, 65536, false).seconds, even + 65536 / kBytesPerSecond);
}

TEST(SimulatedCluster, LocalMessagesShareTheHostOrHaveTheirPorts) {
  Cluster cluster = cluster_of(1, 4);
  const double hop = 0x1p-20 + 2 * 0x1p-22;
  const Algorithm& ring = row(Collective::allgather, "ring");
  EXPECT_EQ(run(ring, cluster, 4 * 65536).seconds, 3 * (hop + 4 * 65536 / 0x1p34));
  cluster.local_ports = true;
  EXPECT_EQ(run(ring, cluster, 4 * 65536).seconds, 3 * (hop + 65536 / 0x1p34));
}

// ---- Symmetry ----

std::vector<Cluster> clusters() {
  std::vector<Cluster> all{cluster_of(4),    cluster_of(5),    cluster_of(8),   cluster_of(4, 2),
                           cluster_of(3, 3), cluster_of(8, 4), cluster_of(1, 8)};
  for (Cluster& cluster : all) {
    cluster.network.overhead_s = 0.7e-6;
    cluster.network.gap_s = 0.9e-6;
    cluster.network.bytes_per_s = 1.3e9;
    cluster.reduce_bytes_per_s = 7e9;
    cluster.copy_bytes_per_s = 5e9;
  }
  all.push_back(all.at(5));
  all.back().switches = {{.name = "rack", .hosts = 2, .oversubscription = 3}};
  return all;
}

// The catalog declares which algorithms rotate. The declared ones are compared at every size, the others must not be
// usable by mistake: is_symmetric() compares each rank.
TEST(SimulatedCluster, DeclaredRotationsHoldForEveryRank) {
  for (const Algorithm& algorithm : catalog()) {
    if (!algorithm.rotates) continue;
    for (int ranks = 2; ranks <= 40; ++ranks) {
      const int64_t bytes = 4 * 5 * ranks;
      const auto write = [&](int rank) {
        return algorithm.write({.collective = algorithm.collective, .rank = rank, .size = ranks});
      };
      const PlacedProgram first = compile(write(0), bytes, 16);
      for (int rank = 1; rank < ranks; ++rank) {
        const PlacedProgram other = compile(write(rank), bytes, 16);
        ASSERT_TRUE(first.program == other.program) << algorithm.name << " " << ranks << " " << rank;
        for (std::size_t i = 0; i < first.peers.size(); ++i)
          ASSERT_EQ((first.peers[i] + rank) % ranks, other.peers[i]) << algorithm.name << " " << ranks << " " << rank;
      }
    }
  }
}

TEST(SimulatedCluster, SymmetryChangesNoTime) {
  int by_symmetry = 0;
  for (const Algorithm& algorithm : catalog()) {
    for (const Cluster& cluster : clusters()) {
      if (!fits(algorithm, cluster.ranks())) continue;
      for (const int64_t elements : {cluster.ranks() * 64, cluster.ranks() * 64 + 5, 1}) {
        const SimulatedCollective all = run(algorithm, cluster, 4 * elements, false, 64);
        const SimulatedCollective few = run(algorithm, cluster, 4 * elements, true, 64);
        EXPECT_EQ(all.seconds, few.seconds) << algorithm.name << " " << name_of(algorithm.collective) << " "
                                            << cluster.hosts << "x" << cluster.ranks_per_host << " " << elements;
        EXPECT_EQ(all.messages, few.messages);
        by_symmetry += few.simulated_ranks < all.simulated_ranks ? 1 : 0;
      }
    }
  }
  EXPECT_GT(by_symmetry, 100);
}

TEST(SimulatedCluster, UnequalChunksAreNotTakenForEqual) {
  const SimulatedCollective result = run(row(Collective::allreduce, "ring"), cluster_of(4), 4 * 5);
  EXPECT_EQ(result.symmetry, Renumbering::none);
  EXPECT_EQ(result.simulated_ranks, 4);
}

// Where a host has several ranks, most patterns let all of them use its card at once; a ring has one of them cross.
TEST(SimulatedCluster, AlgorithmsForLongVectorsAreChosenByWhatSharesACard) {
  for (const Collective collective : {Collective::allgather, Collective::reduce_scatter}) {
    for (const auto& [hosts, local] : std::vector<std::pair<int, int>>{{2, 2}, {2, 8}, {4, 4}, {8, 2}, {8, 8}}) {
      const Cluster cluster{.hosts = hosts, .ranks_per_host = local};
      const GroupShape shape{.ranks = hosts * local,
                             .hosts = hosts,
                             .ranks_per_host = local,
                             .alpha_s = 2 * cluster.network.overhead_s,
                             .latency_s = cluster.network.latency_s,
                             .beta_s = 1 / cluster.network.bytes_per_s,
                             .levels = levels_of(cluster),
                             .level_latency_s = level_latencies_s(cluster)};
      for (const int64_t bytes : {4 << 20, 32 << 20}) {
        double best_s = INFINITY;
        for (const Algorithm& algorithm : catalog()) {
          if (algorithm.collective == collective && obstacle(algorithm, shape.ranks, {}).empty())
            best_s = std::min(best_s, run(algorithm, cluster, bytes).seconds);
        }
        const auto choice = choose(collective, shape, bytes);
        EXPECT_LE(run(*choice->algorithm, cluster, bytes).seconds, 1.1 * best_s) << choice->why;
      }
    }
  }
}

// ---- Two levels, as the library runs an allreduce on hosts that share memory ----

SimulatedCollective run_whole(std::string_view between, const Cluster& cluster, int64_t bytes,
                              bool by_symmetry = true) {
  const auto way = hierarchical_way(row(Collective::allreduce, between), cluster, bytes, kSlice);
  const auto result = simulate_collective(way, cluster, {}, by_symmetry);
  EXPECT_TRUE(result.ok()) << between << ": " << result.status().text();
  return result.ok() ? *result : SimulatedCollective{};
}

TEST(SimulatedCluster, TwoLevelsAddUp) {
  const Cluster cluster = cluster_of(4, 2);
  const double local_hop = 0x1p-20 + 2 * 0x1p-22;
  // Inside the host both ranks read half of the vector from each other; between hosts both exchange a half at once.
  const double inside = local_hop + 2 * 2048 / 0x1p34;
  const double between = 2 * (kLatency_s + 2 * kOverhead_s + 2 * 2048 / kBytesPerSecond);
  EXPECT_EQ(run_whole("recursive_doubling", cluster, 4096).seconds, inside + between + inside);
}

TEST(SimulatedCluster, SegmentsTakeTurnsBetweenHosts) {
  Cluster cluster = cluster_of(2, 2);
  cluster.network.latency_s = 0x1p-4;
  ASSERT_EQ(bytes_between_hosts(cluster, 8 << 20), 512 << 10);  // eight segments
  const double seconds = run_whole("recursive_doubling", cluster, 8 << 20).seconds;
  EXPECT_GE(seconds, 8 * 0x1p-4);
  EXPECT_LE(seconds, 9 * 0x1p-4);
}

TEST(SimulatedCluster, SymmetryChangesNoTimeOfTwoLevels) {
  for (const std::string_view between : {"ring", "recursive_doubling", "halving_doubling", "double_binary_tree"}) {
    for (const int64_t bytes : {4, 4096, 1 << 20, 12 << 20}) {
      const Cluster cluster = cluster_of(8, 4);
      EXPECT_EQ(run_whole(between, cluster, bytes).seconds, run_whole(between, cluster, bytes, false).seconds)
          << between << " " << bytes;
    }
  }
  EXPECT_EQ(run_whole("ring", cluster_of(8, 4), 4096).symmetry, Renumbering::rotation);
  EXPECT_EQ(run_whole("halving_doubling", cluster_of(8, 4), 4096).symmetry, Renumbering::exchange);
}

// ---- What must hold for every algorithm ----

TEST(SimulatedCluster, EveryByteSentIsReceivedAndNoTimeIsBelowTheBound) {
  for (const Algorithm& algorithm : catalog()) {
    for (const Cluster& cluster : clusters()) {
      if (!fits(algorithm, cluster.ranks())) continue;
      const int64_t bytes = 4 * (cluster.ranks() * 100 + 3);
      const auto group = group_program(flat_way(algorithm, cluster, bytes, 128), cluster, {});
      ASSERT_TRUE(group.ok());
      const auto result = ClusterSimulation(cluster, *group).run();
      ASSERT_TRUE(result.ok()) << algorithm.name << ": " << result.status().text();
      EXPECT_EQ(result->bytes_sent, result->bytes_received) << algorithm.name;
      EXPECT_GE(result->seconds * (1 + 1e-9), lower_bound_s(algorithm.collective, cluster, bytes))
          << algorithm.name << " " << name_of(algorithm.collective) << " " << cluster.hosts << "x"
          << cluster.ranks_per_host;
    }
  }
}

TEST(SimulatedCluster, TheSameSeedGivesTheSameTime) {
  Cluster cluster = cluster_of(6, 2);
  cluster.noise = 0.2;
  const Algorithm& ring = row(Collective::allreduce, "ring");
  const double first = run(ring, cluster, 120000).seconds;
  EXPECT_EQ(first, run(ring, cluster, 120000).seconds);
  cluster.seed = 2;
  EXPECT_NE(first, run(ring, cluster, 120000).seconds);
  cluster.noise = 0;
  EXPECT_LT(run(ring, cluster, 120000).seconds, first);
}

TEST(SimulatedCluster, OneStragglerDelaysAllByItsDelay) {
  Cluster cluster = cluster_of(8);
  const Algorithm& ring = row(Collective::allreduce, "ring");
  const double alone = run(ring, cluster, 65536).seconds;
  cluster.stragglers = 1;
  cluster.straggler_delay_s = 0x1p-7;
  const double late = run(ring, cluster, 65536).seconds;
  EXPECT_LE(late, 0x1p-7 + alone);
  EXPECT_GE(late, 0x1p-7 + alone / 2);
}

// ---- Errors ----

std::string refusal(std::string_view algorithm, const Cluster& cluster, int64_t bytes) {
  const auto way = flat_way(row(Collective::allreduce, algorithm), cluster, bytes, kSlice);
  return simulate_collective(way, cluster, {}).status().text();
}

TEST(SimulatedCluster, RefusesWhatIsTooLargeWithARemedy) {
  const Cluster large = cluster_of(4096, 8);
  EXPECT_THAT(refusal("two_level", large, 1 << 20), HasSubstr("too many to simulate: simulate fewer ranks"));
  EXPECT_THAT(refusal("ring", large, 4), HasSubstr("give bytes of which each rank gets an equal number"));
  EXPECT_THAT(refusal("binomial_tree", cluster_of(1024), int64_t{1} << 34), HasSubstr("larger slices"));
}

TEST(SimulatedCluster, RefusesClustersThatCannotBe) {
  Cluster cluster = cluster_of(4);
  cluster.network.bytes_per_s = 0;
  EXPECT_THAT(check(cluster).text(), HasSubstr("bandwidth of the network link"));
  cluster = cluster_of(70000);
  EXPECT_THAT(check(cluster).text(), HasSubstr("more than 65536 ranks"));
  cluster = cluster_of(4);
  cluster.stragglers = 5;
  EXPECT_THAT(check(cluster).text(), HasSubstr("5 stragglers"));
}

TEST(SimulatedCluster, ADeadlockIsAnErrorAndNoHang) {
  const auto both_receive_first = [](const ScheduleRequest& request) {
    Builder step("deadlock", Collective::allreduce, request.rank, request.size, 1);
    return step.recv(1 - request.rank, output(0)).send(1 - request.rank, output(0)).take();
  };
  const Algorithm algorithm{
      .name = "deadlock", .collective = Collective::allreduce, .sentence = "", .write = both_receive_first};
  const Cluster cluster = cluster_of(2);
  const auto result = simulate_collective(flat_way(algorithm, cluster, 4, kSlice), cluster, {});
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().text(), HasSubstr("never finishes"));
}

}  // namespace
}  // namespace fdl
