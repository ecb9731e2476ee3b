// Tests of simulated starts and losses: counts of messages, times that follow from the links, and losses by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulate/control/simulate_control.h"

namespace fdl {
namespace {

using testing::HasSubstr;
using Victim = SimulatedVictim;

Cluster cluster_of(int hosts, int ranks_per_host) {
  Cluster cluster{.hosts = hosts, .ranks_per_host = ranks_per_host};
  cluster.network.latency_s = 10e-6;
  return cluster;
}

SimulatedStart start_of(const Cluster& cluster, const ControlCosts& costs = {}) {
  const auto start = simulate_start(cluster, costs);
  EXPECT_TRUE(start.ok()) << start.status().text();
  return start.ok() ? *start : SimulatedStart();
}

SimulatedLoss loss_of(const Cluster& cluster, const Victim& victim, const ControlCosts& costs = {}) {
  const auto loss = simulate_loss(cluster, costs, victim);
  EXPECT_TRUE(loss.ok()) << loss.status().text();
  return loss.ok() ? *loss : SimulatedLoss();
}

// ---- The start ----

TEST(SimulatedStart, HasTheMessagesOfTheProtocol) {
  // Without shared hosts each rank sends: hello, wait, its address, "made" and the wait for all; rank 0 collects.
  const SimulatedStart one_each = start_of(cluster_of(8, 1));
  EXPECT_EQ(one_each.received, 8 * 5);
  // Each has an answer, and each learns which rank serves the coordinator.
  EXPECT_EQ(one_each.sent, 8 * 5 + 8);
  EXPECT_EQ(one_each.most_messages, 5 + 5 + 1);
  EXPECT_EQ(one_each.connections, 8);
  // On one host a leader publishes its socket, the ranks that share memory and three segments, and collects the
  // answers; each other rank fetches these and answers. There are no addresses.
  const SimulatedStart shared = start_of(cluster_of(1, 8));
  EXPECT_EQ(shared.received, 8 * 4 + 6 + 7 * 6);
  EXPECT_EQ(shared.sent, shared.received + 8);
  EXPECT_EQ(shared.repeated_calls, 0);
}

TEST(SimulatedStart, EachRankHasEquallyManyMessagesInEveryWorld) {
  const int64_t few = start_of(cluster_of(4, 8)).most_messages;
  EXPECT_EQ(start_of(cluster_of(64, 8)).most_messages, few);
  EXPECT_EQ(start_of(cluster_of(512, 8)).most_messages, few);
}

TEST(SimulatedStart, TakesLongerBetweenZones) {
  Cluster cluster = cluster_of(8, 1);
  cluster.switches = {{.name = "zone", .hosts = 8, .latency_s = 1}};
  const double one_zone_s = start_of(cluster).seconds;
  EXPECT_LT(one_zone_s, 1);
  cluster.switches.front().hosts = 4;
  EXPECT_GT(start_of(cluster).connected_s, 1);
}

TEST(SimulatedStart, PassesItsMilestonesInOrder) {
  const SimulatedStart start = start_of(cluster_of(16, 4));
  EXPECT_GT(start.connected_s, 0);
  EXPECT_GT(start.table_s, start.connected_s);
  EXPECT_GT(start.hosts_s, start.table_s);
  EXPECT_GT(start.memory_s, start.hosts_s);
  EXPECT_GT(start.seconds, start.memory_s);
  EXPECT_LE(start.first_rank_s, start.seconds);
}

TEST(SimulatedStart, TakesAtLeastTheWorkOfTheCoordinator) {
  const ControlCosts costs{.handshake_s = 1e-3, .message_s = 100e-6};
  const SimulatedStart start = start_of(cluster_of(100, 1), costs);
  const double work_s = 100 * costs.handshake_s + static_cast<double>(start.received + start.sent) * costs.message_s;
  EXPECT_GE(start.seconds, work_s);
  EXPECT_LE(start.seconds, work_s + 0.01);
}

// A free coordinator leaves the latency of the links: five exchanges one after the other, and three of the connection.
TEST(SimulatedStart, TakesTheRoundTripsOfTheLinks) {
  const ControlCosts free{.handshake_s = 0, .message_s = 0, .seal_bytes_per_s = 1e18, .write_bytes_per_s = 1e18};
  Cluster cluster = cluster_of(4, 1);
  cluster.network = {.bytes_per_s = 1e18, .latency_s = 1e-3, .overhead_s = 0};
  cluster.local.overhead_s = 0;
  const SimulatedStart start = start_of(cluster, free);
  EXPECT_NEAR(start.seconds, 16e-3, 0.1e-3);
  cluster.network.latency_s = 2e-3;
  EXPECT_NEAR(start_of(cluster, free).seconds, 2 * start.seconds, 0.1e-3);
}

TEST(SimulatedStart, CallsThatFindTheQueueFullAreRepeated) {
  const ControlCosts costs{.handshake_s = 1e-3, .accept_queue = 16};
  const SimulatedStart start = start_of(cluster_of(64, 1), costs);
  EXPECT_GT(start.repeated_calls, 0);
  EXPECT_GT(start.connected_s, 1) << "a kernel repeats a call after a second";
  EXPECT_EQ(start_of(cluster_of(16, 1), costs).repeated_calls, 0);
}

TEST(SimulatedStart, WaitsForALateRank) {
  Cluster cluster = cluster_of(8, 2);
  cluster.stragglers = 1;
  cluster.straggler_delay_s = 2;
  const SimulatedStart start = start_of(cluster);
  EXPECT_GT(start.first_rank_s, 2);
  EXPECT_LT(start.seconds, 2.1);
}

TEST(SimulatedStart, TheSameSeedGivesTheSameTimes) {
  Cluster cluster = cluster_of(8, 4);
  cluster.noise = 0.5;
  const double first = start_of(cluster).seconds;
  EXPECT_EQ(start_of(cluster).seconds, first);
  cluster.seed = 2;
  EXPECT_NE(start_of(cluster).seconds, first);
}

TEST(SimulatedStart, OfOneRankEnds) { EXPECT_GT(start_of(cluster_of(1, 1)).seconds, 0); }

// The text is that of the shipped coordinator.
TEST(SimulatedStart, NamesTheRanksThatComeTooLate) {
  Cluster cluster = cluster_of(4, 1);
  cluster.stragglers = 1;
  cluster.straggler_delay_s = 40;
  const auto start = simulate_start(cluster, {});
  ASSERT_FALSE(start.ok());
  EXPECT_EQ(start.status().code(), Code::timeout);
  EXPECT_THAT(start.status().text(), HasSubstr("of 4 has not arrived after 30 s"));
}

// ---- Losses ----

TEST(SimulatedLoss, OfAProcessIsKnownAfterOneMessageToEachRank) {
  const ControlCosts costs{.message_s = 10e-6};
  const SimulatedLoss loss = loss_of(cluster_of(100, 1), {.kind = Victim::Kind::rank, .number = 7}, costs);
  EXPECT_EQ(loss.victims, 1);
  EXPECT_EQ(loss.sent, 99);
  EXPECT_EQ(loss.received, 0);
  EXPECT_EQ(loss.most_messages, 1);
  EXPECT_LT(loss.first_s, loss.last_s);
  EXPECT_NEAR(loss.last_s, 99 * 10e-6, 0.1e-3);
  EXPECT_LT(loss.warned_s, 0) << "a process that ends is not silent before";
}

TEST(SimulatedLoss, OfAHostIsKnownWithAllItsRanks) {
  const SimulatedLoss loss = loss_of(cluster_of(8, 4), {.kind = Victim::Kind::host, .number = 2, .at_s = 3});
  EXPECT_EQ(loss.victims, 4);
  EXPECT_EQ(loss.most_messages, 4);
}

TEST(SimulatedLoss, OfAHostOfALargeWorldIsKnownAfterOneMessageToEachRank) {
  const SimulatedLoss loss = loss_of(cluster_of(32, 4), {.kind = Victim::Kind::host, .number = 2, .at_s = 3});
  EXPECT_EQ(loss.victims, 4);
  EXPECT_EQ(loss.sent, 31 * 4);
  EXPECT_EQ(loss.most_messages, 1);
}

TEST(SimulatedLoss, OfTheCoordinatorIsFoundByEachRankItself) {
  const SimulatedLoss loss = loss_of(cluster_of(16, 2), {.kind = Victim::Kind::coordinator});
  EXPECT_EQ(loss.victims, 1);
  EXPECT_EQ(loss.most_messages, 0);
  EXPECT_LT(loss.last_s, 0.01);
  EXPECT_EQ(loss_of(cluster_of(16, 2), {.kind = Victim::Kind::rank, .number = 0}).last_s, loss.last_s);
}

// What the documents promise: a warning after suspect_after_s + silence_warning_s, the loss after suspect_after_s +
// lost_after_s.
TEST(SimulatedLoss, OfARankThatIsStoppedIsKnownAfterItsSilence) {
  for (const Victim::Kind kind : {Victim::Kind::rank, Victim::Kind::host}) {
    const SimulatedLoss loss = loss_of(cluster_of(8, 2), {.kind = kind, .number = 3, .is_silent = true});
    EXPECT_NEAR(loss.last_s, 10.4, 0.05);
    EXPECT_NEAR(loss.warned_s, 1.4, 0.05);
  }
}

TEST(SimulatedLoss, OfACoordinatorThatIsStoppedIsKnownAfterItsSilence) {
  const SimulatedLoss loss = loss_of(cluster_of(8, 2), {.kind = Victim::Kind::coordinator, .is_silent = true});
  EXPECT_GT(loss.last_s, 10.3);
  EXPECT_LT(loss.last_s, 11.5);
}

// In a large world ranks take turns, so a stopped one may be found up to 2.5 s later.
TEST(SimulatedLoss, OfAStoppedRankOfALargeWorldIsKnownInTime) {
  const SimulatedLoss loss =
      loss_of(cluster_of(128, 8), {.kind = Victim::Kind::rank, .number = 500, .is_silent = true});
  EXPECT_GT(loss.last_s, 10.3);
  EXPECT_LT(loss.last_s, 10.4 + 2.5 + 0.1);
}

TEST(SimulatedLoss, NeedsAVictimThatIsThereAndARankThatIsLeft) {
  const auto refused = [](int hosts, const Victim& victim) {
    const auto loss = simulate_loss(cluster_of(hosts, 2), {}, victim);
    EXPECT_FALSE(loss.ok());
    return loss.ok() ? std::string() : std::string(loss.status().text());
  };
  EXPECT_THAT(refused(4, {.kind = Victim::Kind::rank, .number = 8}),
              HasSubstr("there is no rank 8: the last one is 7"));
  EXPECT_THAT(refused(4, {.kind = Victim::Kind::host, .number = 4}),
              HasSubstr("there is no host 4: the last one is 3"));
  EXPECT_THAT(refused(1, {.kind = Victim::Kind::host}), HasSubstr("no rank is left"));
}

}  // namespace
}  // namespace fdl
