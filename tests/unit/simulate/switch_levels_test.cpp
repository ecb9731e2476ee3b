// Tests of levels of switches: latency and bandwidth between groups by hand, the lower bound, symmetry and checks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "schedule/builder.h"
#include "simulate/lower_bound.h"
#include "tests/unit/simulate/simulated_cluster.h"

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// ---- Messages by hand ----

constexpr int64_t kBytes = 65536;
constexpr double kCard_s = kBytes / kBytesPerSecond;  // of a message that has a card for itself

using Messages = std::vector<std::pair<int, int>>;  // sender and receiver

// The time until messages of kBytes between hosts have arrived that all start at once.
double time_of(const Messages& messages, const Cluster& cluster) {
  const auto write = [&](int rank) {
    Builder step("messages", Collective::allreduce, rank, cluster.ranks(), 1);
    for (const auto& [from, to] : messages) {
      if (from == rank) step.send(to, input(0));
      if (to == rank) step.recv(from, output(0));
    }
    return step.take();
  };
  const SimulatedWay way{.name = "messages",
                         .steps = [&](int) { return std::ssize(messages); },
                         .place = [&](int rank) { return compile(write(rank), kBytes, kSlice); }};
  const auto result = simulate_collective(way, cluster, {}, false);
  EXPECT_TRUE(result.ok()) << result.status().text();
  return result.ok() ? result->seconds : 0;
}

// Without latency of the link, and without overhead.
double transfer_s(const Messages& messages, const Cluster& cluster) {
  return time_of(messages, cluster) - kLatency_s - 2 * kOverhead_s;
}

// Racks of two hosts, zones of two racks, regions of two zones, two regions.
Cluster with_latencies() {
  Cluster cluster = cluster_of(16);
  cluster.switches = {{.name = "rack", .hosts = 2, .latency_s = 0x1p-14},
                      {.name = "zone", .hosts = 4, .latency_s = 0x1p-12},
                      {.name = "region", .hosts = 8, .latency_s = 0x1p-10}};
  return cluster;
}

TEST(SwitchLevels, LatenciesOfAllLevelsThatAMessageCrossesAddUp) {
  const Cluster cluster = with_latencies();
  EXPECT_EQ(time_of({{0, 1}}, cluster), hop_s(kBytes));
  EXPECT_EQ(time_of({{0, 2}}, cluster), hop_s(kBytes) + 0x1p-14);
  EXPECT_EQ(time_of({{1, 2}}, cluster), hop_s(kBytes) + 0x1p-14);
  EXPECT_EQ(time_of({{3, 4}}, cluster), hop_s(kBytes) + 0x1p-14 + 0x1p-12);
  EXPECT_EQ(time_of({{7, 8}}, cluster), hop_s(kBytes) + 0x1p-14 + 0x1p-12 + 0x1p-10);
  EXPECT_EQ(time_of({{15, 0}}, cluster), hop_s(kBytes) + 0x1p-14 + 0x1p-12 + 0x1p-10);
}

TEST(SwitchLevels, MessagesInsideAHostCrossNothing) {
  Cluster cluster = with_latencies();
  cluster.ranks_per_host = 2;
  EXPECT_EQ(time_of({{0, 1}}, cluster), 0x1p-20 + 2 * 0x1p-22 + kBytes / 0x1p34);
  EXPECT_EQ(time_of({{1, 2}}, cluster), hop_s(kBytes));
  EXPECT_EQ(time_of({{3, 4}}, cluster), hop_s(kBytes) + 0x1p-14);
}

// Racks of four hosts whose uplinks carry two cards, zones of two racks whose uplinks carry one card: half of a rack's
// uplinks together is two cards, a quarter is one.
Cluster with_narrow_uplinks() {
  Cluster cluster = cluster_of(32);
  cluster.switches = {{.name = "rack", .hosts = 4, .oversubscription = 2},
                      {.name = "zone", .hosts = 8, .oversubscription = 4}};
  return cluster;
}

TEST(SwitchLevels, MessagesShareTheUplinkOfTheirRack) {
  const Cluster cluster = with_narrow_uplinks();
  EXPECT_EQ(transfer_s({{0, 1}, {1, 2}, {2, 3}, {3, 0}}, cluster), kCard_s);  // on no uplink
  EXPECT_EQ(transfer_s({{0, 4}, {1, 5}}, cluster), kCard_s);
  EXPECT_EQ(transfer_s({{0, 4}, {1, 5}, {2, 6}, {3, 7}}, cluster), 2 * kCard_s);
  // Each direction has its own bandwidth.
  EXPECT_EQ(transfer_s({{0, 4}, {1, 5}, {4, 0}, {5, 1}}, cluster), kCard_s);
}

TEST(SwitchLevels, MessagesShareTheUplinkOfTheirZone) {
  const Cluster cluster = with_narrow_uplinks();
  EXPECT_EQ(transfer_s({{0, 8}}, cluster), kCard_s);
  EXPECT_EQ(transfer_s({{0, 8}, {4, 12}}, cluster), 2 * kCard_s);  // of two racks
  EXPECT_EQ(transfer_s({{0, 8}, {1, 9}, {4, 12}, {5, 13}}, cluster), 4 * kCard_s);
  EXPECT_EQ(transfer_s({{0, 8}, {8, 0}}, cluster), kCard_s);
  // Messages of other zones meet at the zone of their receivers.
  EXPECT_EQ(transfer_s({{8, 0}, {16, 1}, {24, 4}}, cluster), 3 * kCard_s);
  // Messages of four racks and two zones meet at the rack of their receivers.
  Cluster wide_zones = cluster;
  wide_zones.switches.back().oversubscription = 1;
  EXPECT_EQ(transfer_s({{8, 0}, {12, 1}, {16, 2}, {20, 3}}, wide_zones), 2 * kCard_s);
  // A message inside the zone does not wait for those that leave it: the uplink of the rack gives it a half of two
  // cards.
  EXPECT_EQ(transfer_s({{0, 8}, {1, 4}}, cluster), kCard_s);
}

// Four messages leave a rack, of which one leaves the zone: the uplink of the rack gives each a half of a card.
TEST(SwitchLevels, AMessageMovesAtTheSmallestOfItsShares) {
  Cluster cluster = with_narrow_uplinks();
  EXPECT_EQ(transfer_s({{0, 8}, {1, 5}, {2, 6}, {3, 7}}, cluster), 2 * kCard_s);
  cluster.switches.back().oversubscription = 16;  // a quarter of a card
  EXPECT_EQ(transfer_s({{0, 8}, {1, 5}, {2, 6}, {3, 7}}, cluster), 4 * kCard_s);
}

TEST(SwitchLevels, UplinksHaveTheBandwidthOfThoseBelowDividedByTheOversubscription) {
  Cluster cluster = cluster_of(64);
  cluster.switches = {{.name = "rack", .hosts = 4, .oversubscription = 2},
                      {.name = "zone", .hosts = 16, .oversubscription = 4},
                      {.name = "region", .hosts = 32}};
  EXPECT_THAT(uplink_bytes_per_s(cluster), ElementsAre(2 * kBytesPerSecond, 2 * kBytesPerSecond, 4 * kBytesPerSecond));
  EXPECT_THAT(uplink_bytes_per_s(cluster_of(4)), ElementsAre());
}

// As many links as there are cards, local links and uplinks, and none of them twice.
TEST(SwitchLevels, NumbersEachLinkOnce) {
  Cluster cluster = cluster_of(10, 2);
  cluster.switches = {{.name = "rack", .hosts = 2}, {.name = "zone", .hosts = 4}};
  for (const bool local_ports : {false, true}) {
    cluster.local_ports = local_ports;
    const ClusterLinks links(cluster);
    std::set<int32_t> used;
    for (int from = 0; from < cluster.ranks(); ++from) {
      for (int to = 0; to < cluster.ranks(); ++to) {
        if (from == to) continue;
        const auto path = links.path(from, to, from, to);
        EXPECT_EQ(std::set(path.begin(), path.end()).size(), path.size());
        used.insert(path.begin(), path.end());
      }
    }
    EXPECT_EQ(static_cast<int32_t>(used.size()), links.count());
    EXPECT_EQ(links.count(), 2 * 10 + (local_ports ? 2 * 20 : 10) + 2 * 5 + 2 * 3);
    EXPECT_EQ(*used.rbegin(), links.count() - 1);
  }
}

// ---- The lower bound ----

TEST(SwitchLevels, TheBoundCountsTheBytesOfEachUplink) {
  Cluster cluster = cluster_of(16);
  cluster.network.latency_s = cluster.network.overhead_s = 0;
  cluster.switches = {{.name = "rack", .hosts = 4, .oversubscription = 4}, {.name = "zone", .hosts = 8}};
  const auto bound = [&] { return lower_bound_s(Collective::allreduce, cluster, kBytes); };
  EXPECT_EQ(bound(), 2 * 3.0 / 4 * kBytes / kBytesPerSecond * (15.0 / 16 / (3.0 / 4)));  // of a card
  cluster.switches[0].oversubscription = 16;
  EXPECT_EQ(bound(), 2 * 3.0 / 4 * kBytes / (kBytesPerSecond / 4));  // of a rack
  cluster.switches[0].oversubscription = 4;
  cluster.switches[1].oversubscription = 64;
  EXPECT_EQ(bound(), 2 * 1.0 / 2 * kBytes / (kBytesPerSecond / 32));  // of a zone
}

TEST(SwitchLevels, TheBoundCountsTheLatencyBetweenGroups) {
  const double all_levels_s = kLatency_s + 2 * kOverhead_s + 0x1p-14 + 0x1p-12 + 0x1p-10;
  EXPECT_EQ(lower_bound_s(Collective::barrier, with_latencies(), 4), all_levels_s);
}

// Clusters of random levels with at most 48 ranks. `equal`: all groups of a level are equally large.
std::vector<Cluster> random_clusters(int count, bool equal, unsigned seed) {
  std::mt19937 random(seed);
  const auto one_of = [&random](std::vector<int> values) { return values[random() % values.size()]; };
  std::vector<Cluster> all;
  while (static_cast<int>(all.size()) < count) {
    Cluster cluster = cluster_of(1, one_of({1, 1, 2, 3}));
    cluster.network.overhead_s = 0.7e-6;
    cluster.network.bytes_per_s = 1.3e9;
    cluster.reduce_bytes_per_s = 7e9;
    cluster.copy_bytes_per_s = 5e9;
    cluster.local_ports = one_of({0, 1}) == 1;
    const int levels = one_of({1, 2, 2, 3});
    for (int level = 0; level < levels; ++level) {
      cluster.hosts *= one_of({2, 2, 3, 4});
      cluster.switches.push_back({.name = "level" + std::to_string(level),
                                  .hosts = cluster.hosts,
                                  .oversubscription = one_of({1, 2, 3, 7}) * 1.0,
                                  .latency_s = one_of({0, 3, 40}) * 1e-6});
    }
    cluster.hosts *= one_of({1, 2, 2, 3, 4});
    if (!equal) cluster.hosts += one_of({1, 1, 2, 3});
    if (cluster.ranks() > 48) continue;
    EXPECT_TRUE(check(cluster).ok()) << check(cluster).text();
    all.push_back(cluster);
  }
  return all;
}

std::string describe(const Algorithm& algorithm, const Cluster& cluster) {
  std::string text = std::string(algorithm.name) + " of " + std::string(name_of(algorithm.collective)) + " on " +
                     std::to_string(cluster.hosts) + "x" + std::to_string(cluster.ranks_per_host);
  for (const SwitchLevel& level : cluster.switches)
    text += " / " + std::to_string(level.hosts) + " " + std::to_string(level.oversubscription) + ":1 " +
            std::to_string(level.latency_s);
  return text;
}

TEST(SwitchLevels, NoTimeIsBelowTheBound) {
  for (const bool equal : {true, false}) {
    for (const Cluster& cluster : random_clusters(12, equal, 5)) {
      for (const Algorithm& algorithm : catalog()) {
        if (!fits(algorithm, cluster.ranks())) continue;
        for (const int64_t bytes : {4 * cluster.ranks(), 4 * (cluster.ranks() * 100 + 3), 4 * cluster.ranks() * 8192}) {
          const double seconds = run(algorithm, cluster, bytes, true, 32768).seconds;
          EXPECT_GE(seconds * (1 + 1e-9), lower_bound_s(algorithm.collective, cluster, bytes))
              << describe(algorithm, cluster) << ", " << bytes << " bytes";
        }
      }
    }
  }
}

// ---- Symmetry ----

TEST(SwitchLevels, TheUnitIsTheOutermostGroupThatIsNotAlone) {
  Cluster cluster = with_latencies();
  cluster.ranks_per_host = 2;
  EXPECT_EQ(symmetry_of(cluster, Renumbering::rotation).unit, 16);
  cluster.hosts = 8;  // one region
  EXPECT_EQ(symmetry_of(cluster, Renumbering::rotation).unit, 8);
  EXPECT_EQ(symmetry_of(cluster, Renumbering::exchange).unit, 8);
  cluster.hosts = 12;  // a region of 8 and one of 4
  EXPECT_EQ(symmetry_of(cluster, Renumbering::rotation).kind, Renumbering::none);
  cluster.hosts = 24;
  EXPECT_EQ(symmetry_of(cluster, Renumbering::rotation).unit, 16);
  EXPECT_EQ(symmetry_of(cluster, Renumbering::exchange).kind, Renumbering::none);
}

TEST(SwitchLevels, SymmetryChangesNoTime) {
  int by_symmetry = 0;
  for (const bool equal : {true, false}) {
    for (const Cluster& cluster : random_clusters(equal ? 10 : 4, equal, 11)) {
      for (const Algorithm& algorithm : catalog()) {
        if (!fits(algorithm, cluster.ranks())) continue;
        for (const int64_t elements : {cluster.ranks() * 64, cluster.ranks() * 64 + 5}) {
          const SimulatedCollective all = run(algorithm, cluster, 4 * elements, false, 64);
          const SimulatedCollective few = run(algorithm, cluster, 4 * elements, true, 64);
          EXPECT_EQ(all.seconds, few.seconds) << describe(algorithm, cluster) << ", " << elements << " elements";
          by_symmetry += few.simulated_ranks < all.simulated_ranks ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(by_symmetry, 100);
}

// ---- Sizes of levels ----

TEST(SwitchLevels, SizesOfLevelsMultiplyToTheRanks) {
  Cluster cluster = cluster_of(512, 8);
  EXPECT_THAT(levels_of(cluster), ElementsAre(8, 512));
  cluster.switches = {{.name = "rack", .hosts = 32}, {.name = "zone", .hosts = 128}};
  EXPECT_THAT(levels_of(cluster), ElementsAre(8, 32, 4, 4));
  EXPECT_THAT(levels_of(with_one_rank_a_host(cluster)), ElementsAre(32, 4, 4));
  cluster.hosts = 128;  // one zone
  EXPECT_THAT(levels_of(cluster), ElementsAre(8, 32, 4));
  cluster.hosts = 160;  // a zone with one rack
  EXPECT_THAT(levels_of(cluster), ElementsAre(8, 32, 5));
  cluster.hosts = 129;  // a rack with one host
  EXPECT_THAT(levels_of(cluster), ElementsAre(8, 129));
  EXPECT_THAT(levels_of(cluster_of(1, 8)), ElementsAre(8));
  EXPECT_THAT(levels_of(cluster_of(1)), ElementsAre());
  cluster = cluster_of(4);
  cluster.switches = {{.name = "chassis", .hosts = 1}, {.name = "rack", .hosts = 2}};
  EXPECT_THAT(levels_of(cluster), ElementsAre(2, 2));
}

TEST(SwitchLevels, AddTheLatenciesThatAMessageCrosses) {
  Cluster cluster = cluster_of(512, 8);
  cluster.local.latency_s = 1e-6;
  cluster.network.latency_s = 10e-6;
  cluster.switches = {{.name = "rack", .hosts = 32, .latency_s = 100e-6},
                      {.name = "zone", .hosts = 128, .latency_s = 1e-3}};
  EXPECT_THAT(level_latencies_s(cluster), ElementsAre(1e-6, 10e-6, 110e-6, 1110e-6));
  EXPECT_THAT(level_latencies_s(with_one_rank_a_host(cluster)), ElementsAre(10e-6, 110e-6, 1110e-6));
  cluster.hosts = 129;  // a rack of one host: no level, but its latency counts
  EXPECT_THAT(level_latencies_s(cluster), ElementsAre(1e-6, 1110e-6));
}

// ---- Errors ----

std::string refusal(int hosts, const std::vector<SwitchLevel>& switches) {
  Cluster cluster = cluster_of(hosts);
  cluster.switches = switches;
  return check(cluster).text();
}

TEST(SwitchLevels, RefusesLevelsThatCannotBe) {
  EXPECT_THAT(refusal(4, {{.name = "rack", .hosts = 5}}),
              HasSubstr("each rack holds between 1 and all 4 hosts, not 5"));
  EXPECT_THAT(refusal(4, {{.name = "rack", .hosts = 0}}),
              HasSubstr("each rack holds between 1 and all 4 hosts, not 0"));
  EXPECT_THAT(refusal(4, {{.name = "", .hosts = 2}}), HasSubstr("has no name"));
  EXPECT_THAT(refusal(8, {{.name = "rack", .hosts = 2}, {.name = "zone", .hosts = 16}}),
              HasSubstr("each zone holds between 1 and all 8 hosts, not 16"));
  EXPECT_THAT(refusal(12, {{.name = "rack", .hosts = 4}, {.name = "zone", .hosts = 6}}),
              HasSubstr("each zone has 6 hosts, which is not a larger multiple of the 4 hosts of each rack"));
  EXPECT_THAT(refusal(12, {{.name = "rack", .hosts = 4}, {.name = "zone", .hosts = 4}}), HasSubstr("each zone"));
  EXPECT_THAT(refusal(12, {{.name = "rack", .hosts = 4}, {.name = "zone", .hosts = 2}}), HasSubstr("each zone"));
  for (const double wrong : {0.0, 0.5, 1001.0, static_cast<double>(NAN)}) {
    EXPECT_THAT(refusal(4, {{.name = "rack", .hosts = 2, .oversubscription = wrong}}),
                HasSubstr("oversubscription of the uplink of a rack"));
  }
  for (const double wrong : {-1.0, 3601.0, static_cast<double>(NAN)})
    EXPECT_THAT(refusal(4, {{.name = "rack", .hosts = 2, .latency_s = wrong}}), HasSubstr("of the level rack"));
  EXPECT_EQ(refusal(5, {{.name = "rack", .hosts = 2}, {.name = "zone", .hosts = 4}}), "");
}

}  // namespace
}  // namespace fdl
