// Tests of find_hosts(): ranks that can map the same memory form a host, and other ranks do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <thread>

#include "base/mutex.h"
#include "bootstrap/topology/topology.h"
#include "system/socket.h"
#include "tests/support/coordinator_job.h"

namespace fdl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;

class MapExchange final : public Exchange {
 public:
  Status publish(std::string_view key, std::string_view value) override {
    MutexLock lock(mutex_);
    EXPECT_TRUE(facts_.emplace(key, value).second) << key << " is published twice";
    changed_.notify_all();
    return {};
  }
  Result<std::string> fetch(std::string_view key, Deadline deadline) override {
    MutexLock lock(mutex_);
    if (!changed_.wait(mutex_, deadline, [&] { return facts_.contains(std::string(key)); })) {
      return Status(Code::timeout, "no rank published " + std::string(key));
    }
    return facts_[std::string(key)];
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> facts_ FDL_GUARDED_BY(mutex_);
};

// One rank: its kernel and its container. The container determines its key, so that trials between different containers
// fail.
struct Place {
  std::string kernel;
  std::string container;
};

// Returns the host and the memory group of each rank, and checks that all ranks find the same ones.
std::vector<Member> world_of(const std::vector<Place>& places) {
  MapExchange exchange;
  std::vector<HostFacts> facts;
  for (const Place& place : places) facts.push_back({"name of " + place.kernel, place.kernel, 100});
  std::vector<std::vector<Member>> answers(places.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto world = find_hosts(static_cast<int>(rank), facts, "the key of container " + places[rank].container,
                                    exchange, Deadline::after_seconds(60));
      ASSERT_TRUE(world.ok()) << world.status().text();
      answers[rank] = *world;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Member>& answer : answers) {
    EXPECT_EQ(answer.size(), places.size());
    for (std::size_t i = 0; i < answer.size(); ++i) {
      EXPECT_EQ(answer[i].host_name, "name of " + places[i].kernel);
      EXPECT_EQ(answer[i].host_id, answers.front()[i].host_id);
      EXPECT_EQ(answer[i].memory_group, answers.front()[i].memory_group);
    }
  }
  return answers.front();
}

// Returns the host of each rank as the lowest rank on it.
std::vector<int> hosts_of(const std::vector<Place>& places) {
  std::vector<int> hosts;
  std::map<std::string, int> lowest;
  for (const Member& member : world_of(places)) {
    hosts.push_back(lowest.emplace(member.host_id, member.world_rank).first->second);
  }
  return hosts;
}

TEST(Hosts, RanksOfOneMachineShareAHost) {
  EXPECT_THAT(hosts_of({{"a", "x"}, {"a", "x"}, {"a", "x"}, {"a", "x"}}), ElementsAre(0, 0, 0, 0));
}

TEST(Hosts, OneRankIsAHost) { EXPECT_THAT(hosts_of({{"a", "x"}}), ElementsAre(0)); }

TEST(Hosts, DifferentMachinesAreDifferentHosts) {
  EXPECT_THAT(hosts_of({{"a", "x"}, {"b", "x"}, {"a", "x"}, {"b", "x"}, {"c", "x"}}), ElementsAre(0, 1, 0, 1, 4));
}

TEST(Hosts, ContainersOfOneMachineAreSeparateHosts) {
  EXPECT_THAT(hosts_of({{"a", "x"}, {"a", "y"}, {"a", "x"}, {"a", "y"}, {"a", "z"}}), ElementsAre(0, 1, 0, 1, 4));
}

TEST(Hosts, MixturesOfMachinesAndContainers) {
  std::vector<Place> places;
  std::vector<int> expected;
  for (int rank = 0; rank < 48; ++rank) {
    places.push_back(
        {std::string(1, static_cast<char>('a' + rank % 3)), std::string(1, static_cast<char>('x' + rank % 2))});
    expected.push_back(rank % 6);
  }
  EXPECT_EQ(hosts_of(places), expected);
}

// 64 ranks have a bit each in the masks of shared memory. Groups of equal size can reduce inside first.
TEST(Hosts, WithMoreRanksThanAMemoryGroupAreDividedEvenlyAndInOrder) {
  for (const auto& [ranks, expected] :
       {std::pair{64, std::vector{64}}, {65, {33, 32}}, {96, {48, 48}}, {130, {44, 43, 43}}}) {
    const std::vector<Member> world = world_of(std::vector<Place>(static_cast<std::size_t>(ranks), {"a", "x"}));
    std::vector<int> sizes;
    for (const Member& member : world) {
      EXPECT_EQ(member.host_id, world.front().host_id);
      if (member.memory_group == static_cast<int>(sizes.size())) sizes.push_back(0);
      ASSERT_EQ(member.memory_group, static_cast<int>(sizes.size()) - 1);
      ++sizes.back();
    }
    EXPECT_EQ(sizes, expected);
  }
}

TEST(Hosts, AreFoundOverTheCoordinator) {
  class CoordinatorExchange final : public Exchange {
   public:
    explicit CoordinatorExchange(Rank& rank) : rank_(rank) {}
    Status publish(std::string_view key, std::string_view value) override { return rank_->publish(key, value); }
    Result<std::string> fetch(std::string_view key, Deadline deadline) override { return rank_->fetch(key, deadline); }

   private:
    Rank& rank_;
  };
  RunningCoordinator coordinator(options_for(4));
  auto ranks = join_all(coordinator->address(), 4);
  const HostFacts facts = host_facts();
  on_all(ranks, [&](int number, Rank& rank) {
    CoordinatorExchange exchange(rank);
    const auto world = find_hosts(number, {facts, facts, facts, facts}, kKey, exchange, Deadline::after_seconds(60));
    ASSERT_TRUE(world.ok()) << world.status().text();
    for (const Member& member : *world) EXPECT_EQ(member.host_id, facts.boot_id.substr(0, 8) + "/0");
  });
}

// ---- Tests of the error paths ----

TEST(Hosts, SilentRankIsATimeout) {
  MapExchange exchange;
  const HostFacts facts{"a", "kernel", 1};
  const auto leader = find_hosts(0, {facts, facts}, kKey, exchange, Deadline::after_seconds(0.05));
  ASSERT_FALSE(leader.ok());
  EXPECT_EQ(leader.status().code(), Code::timeout);
  EXPECT_THAT(leader.status().text(), HasSubstr("rank 1 did not answer in time"));
  MapExchange other;
  const auto follower = find_hosts(1, {facts, facts}, kKey, other, Deadline::after_seconds(0.05));
  ASSERT_FALSE(follower.ok());
  EXPECT_THAT(follower.status().text(), HasSubstr("hosts/0/socket"));
}

// Rank 1 connects to rank 0 and ends before it has proved anything. Returns what rank 0 finds.
Result<std::vector<Member>> world_of_a_rank_that_connects_and(const std::function<void(Exchange&)>& then) {
  MapExchange exchange;
  std::thread candidate([&] {
    const auto address = exchange.fetch("hosts/0/socket", Deadline::after_seconds(60));
    ASSERT_TRUE(address.ok()) << address.status().text();
    const std::vector<Address> addresses = {{*address}};
    const auto fd = connect_any(addresses, Deadline::after_seconds(60));
    ASSERT_TRUE(fd.ok()) << fd.status().text();
    ASSERT_TRUE(exchange.publish("hosts/0/knock/1", "connected").ok());
    then(exchange);
  });
  const HostFacts facts{"a", "kernel", 1};
  auto found = find_hosts(0, {facts, facts}, kKey, exchange, Deadline::after_seconds(0.5));
  candidate.join();
  return found;
}

// A rank that was lost is no rank that shares no memory: the caller interrupts the wait and names it.
TEST(Hosts, RankThatDiesInItsTrialIsMissed) {
  const auto world = world_of_a_rank_that_connects_and([](Exchange&) {});
  ASSERT_FALSE(world.ok());
  EXPECT_EQ(world.status().code(), Code::timeout);
  EXPECT_THAT(world.status().text(), HasSubstr("rank 1 did not publish in time why it shares no memory with rank 0"));
}

TEST(Hosts, RankThatPublishesWhyItsTrialFailedIsASeparateHost) {
  const auto world = world_of_a_rank_that_connects_and(
      [](Exchange& exchange) { EXPECT_TRUE(exchange.publish("hosts/0/why/1", "it may not map memory").ok()); });
  ASSERT_TRUE(world.ok()) << world.status().text();
  EXPECT_EQ((*world)[0].host_id, "kernel/0");
  EXPECT_EQ((*world)[1].host_id, "kernel/1");
}

TEST(Hosts, InvalidMemberListOfTheLeaderIsAnError) {
  for (const char* nonsense : {"", "7", "x", "0,1,9", "0-", "0-0", "1-0", "0,", "0-7", "1,0", "0,0"}) {
    MapExchange exchange;
    const HostFacts facts{"a", "kernel", 1};
    ASSERT_TRUE(exchange.publish("hosts/0/socket", "").ok());
    ASSERT_TRUE(exchange.publish("hosts/members/0", nonsense).ok());
    const auto world = find_hosts(1, {facts, facts}, kKey, exchange, Deadline::after_seconds(10));
    ASSERT_FALSE(world.ok()) << nonsense;
    EXPECT_EQ(world.status().code(), Code::internal);
  }
}

TEST(Hosts, InvalidListOfRankZeroIsAnError) {
  for (const char* nonsense : {"", "0-1", "0-1;2", "0-1;2-4", "0-2;3", "0-1;0-1;2-3", "0-1;;2-3", "x", "0-1;9"}) {
    MapExchange exchange;
    const HostFacts here{"a", "kernel", 1};
    const HostFacts there{"b", "another", 1};
    ASSERT_TRUE(exchange.publish("hosts/2/socket", "").ok());
    ASSERT_TRUE(exchange.publish("hosts/members/2", "2-3").ok());
    ASSERT_TRUE(exchange.publish("hosts/all", nonsense).ok());
    const auto world = find_hosts(3, {here, here, there, there}, kKey, exchange, Deadline::after_seconds(10));
    ASSERT_FALSE(world.ok()) << nonsense;
    EXPECT_EQ(world.status().code(), Code::internal) << nonsense;
  }
}

// Rank 0 misses the leader of another kernel, and the ranks that wait for rank 0 return the same error.
TEST(Hosts, LeaderThatPublishesNothingIsNamedOnAllRanks) {
  MapExchange exchange;
  const std::vector<HostFacts> facts{{"a", "x", 1}, {"b", "y", 1}, {"b", "y", 1}, {"c", "z", 1}, {"c", "z", 1}};
  std::vector<Status> failures(facts.size());
  std::vector<std::thread> threads;
  for (const int rank : {0, 1, 2}) {
    threads.emplace_back([&, rank] {
      failures[static_cast<std::size_t>(rank)] =
          find_hosts(rank, facts, kKey, exchange, Deadline::after_seconds(0.3)).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int rank : {0, 1, 2}) {
    const Status& failure = failures[static_cast<std::size_t>(rank)];
    EXPECT_EQ(failure.code(), Code::timeout);
    EXPECT_THAT(failure.text(), HasSubstr("rank 3 did not publish in time")) << rank;
  }
}

TEST(Hosts, FailureOfRankZerosOwnTrialReachesTheOtherHosts) {
  MapExchange exchange;
  const std::vector<HostFacts> facts{{"a", "x", 1}, {"a", "x", 1}, {"b", "y", 1}};
  Status there;
  std::thread thread([&] { there = find_hosts(2, facts, kKey, exchange, Deadline::after_seconds(0.3)).status(); });
  const Status here = find_hosts(0, facts, kKey, exchange, Deadline::after_seconds(0.3)).status();
  thread.join();
  EXPECT_THAT(here.text(), HasSubstr("rank 1 did not answer in time"));
  EXPECT_THAT(there.text(), HasSubstr("rank 1 did not answer in time"));
}

// What a rank fetches does not grow with the number of hosts: of its own host one fact besides, or two.
TEST(Hosts, EachRankFetchesOneFactOfAllOtherHosts) {
  class CountingExchange final : public Exchange {
   public:
    explicit CountingExchange(Exchange& exchange) : exchange_(exchange) {}
    Status publish(std::string_view key, std::string_view value) override { return exchange_.publish(key, value); }
    Result<std::string> fetch(std::string_view key, Deadline deadline) override {
      ++requests;
      return exchange_.fetch(key, deadline);
    }
    Result<ManyFacts> fetch_many(std::string_view prefix, const std::vector<int>& ranks, Deadline deadline) override {
      ++requests;
      return exchange_.fetch_many(prefix, ranks, deadline);
    }
    int requests = 0;

   private:
    Exchange& exchange_;
  };
  MapExchange exchange;
  std::vector<HostFacts> facts;
  for (int rank = 0; rank < 40; ++rank) facts.push_back({"a", "kernel " + std::to_string(rank / 2), 1});
  std::vector<CountingExchange> counting(facts.size(), CountingExchange(exchange));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < facts.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto world = find_hosts(static_cast<int>(rank), facts, kKey, counting[rank], Deadline::after_seconds(60));
      EXPECT_TRUE(world.ok()) << world.status().text();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const CountingExchange& one : counting) EXPECT_LE(one.requests, 3);
}

TEST(Hosts, UnreachableLeaderResultsInASeparateHost) {
  MapExchange exchange;
  const HostFacts facts{"a", "kernel", 1};
  ASSERT_TRUE(exchange.publish("hosts/0/socket", "unix:@farandole-no-such-socket").ok());
  ASSERT_TRUE(exchange.publish("hosts/members/0", "0").ok());
  const auto world = find_hosts(1, {facts, facts}, kKey, exchange, Deadline::after_seconds(10));
  ASSERT_TRUE(world.ok()) << world.status().text();
  EXPECT_EQ((*world)[0].host_id, "kernel/0");
  EXPECT_EQ((*world)[1].host_id, "kernel/1");
}

TEST(Hosts, KeepTheNumaNodeOfEachRank) {
  MapExchange exchange;
  const auto world = find_hosts(0, {{"a", "x", 1, 3}}, kKey, exchange, Deadline::after_seconds(10));
  ASSERT_TRUE(world.ok()) << world.status().text();
  EXPECT_EQ((*world)[0].numa_node, 3);
}

// It runs in a separate process, because hwloc's topology is loaded only once per process.
TEST(NumaNodeDeathTest, IsTheOneThatHasAllCoresOfThisProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto in_a_machine = [](const char* machine) {
    ::setenv("HWLOC_SYNTHETIC", machine, 1);
    cpu_set_t all;
    CPU_ZERO(&all);
    ::sched_getaffinity(0, sizeof all, &all);
    int core = 0;
    while (!CPU_ISSET(core, &all)) ++core;
    const int everywhere = numa_node();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    const int bound = numa_node();
    std::_Exit((CPU_COUNT(&all) < 2 || everywhere == -1) && bound == core ? 0 : 1);
  };
  EXPECT_EXIT(in_a_machine("numa:1024 pu:1"), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(in_a_machine("numa:1 pu:1024"), testing::ExitedWithCode(1), "")
      << "a machine with one node has no numa_node()";
}

TEST(Cores, AreEnoughForAsManyRanksAsThereAreCores) {
  const Member mine{.host_id = "here", .process_id = host_facts().process_id};
  const int myself[] = {0};
  std::vector<Member> members(static_cast<std::size_t>(cores_in_affinity(myself)), mine);
  members.resize(members.size() + 10, Member{.host_id = "there"});
  EXPECT_TRUE(each_has_a_core(members, "here"));
  members.push_back(mine);
  EXPECT_FALSE(each_has_a_core(members, "here"));
  members.resize(100'000, mine);
  EXPECT_FALSE(each_has_a_core(members, "here")) << "more ranks than any host has processors";
}

}  // namespace
}  // namespace fdl
