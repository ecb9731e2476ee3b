// Abstract Unix sockets are visible to all users of a host: another user that connects to one of a job's is
// disconnected at once, and a rank does not use one at which another user listens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "bootstrap/coordinator/job_view.h"
#include "bootstrap/recovery/survivor_connections.h"
#include "bootstrap/topology/topology.h"
#include "tests/support/coordinator_job.h"
#include "tests/support/exchange.h"
#include "tests/support/processes/other_user.h"

namespace fdl {
namespace {

using namespace test;
using testing::HasSubstr;

std::string fresh_rendezvous() { return "unix:@farandole-test-" + random_hex(8); }

CoordinatorOptions options_of(int size) {
  CoordinatorOptions options;
  options.size = size;
  options.address = "unix";
  return options;
}

TEST(OtherUsers, AreDisconnectedByACoordinator) {
  if (!OtherUser::is_possible()) return;
  RunningCoordinator coordinator(options_of(2));
  auto ranks = join_all(coordinator->address(), 2);
  expect_another_user_is_disconnected({coordinator->address()});
  EXPECT_EQ(coordinator->strangers(), 1);
  ASSERT_TRUE((*ranks[0])->publish("key", "value").ok());
  EXPECT_EQ((*ranks[1])->fetch("key", Deadline::after_seconds(20)).take(), "value");
}

// This socket asks for no key: the kernel's word for the user is all that protects it.
TEST(OtherUsers, AreDisconnectedByTheSocketForQuestions) {
  if (!OtherUser::is_possible()) return;
  RunningCoordinator coordinator(options_of(1));
  for (const LocalJob& job : find_own_jobs(Deadline::after_seconds(10))) {
    if (job.process_id == ::getpid()) expect_another_user_is_disconnected({"unix:@" + job.socket});
  }
  EXPECT_EQ(coordinator->strangers(), 1);
}

TEST(OtherUsers, AreDisconnectedByAListenerForRecovery) {
  if (!OtherUser::is_possible()) return;
  const std::string rendezvous = fresh_rendezvous();
  const auto silent = open_recovery_point(rendezvous, Config());  // of rank 0, which does not call
  auto opened = open_recovery_point(rendezvous, Config());
  ASSERT_TRUE(silent.ok() && opened.ok());
  RecoveryPoint point = opened.take();
  point.me = 1;
  point.members = {0, 1};
  point.ranks = {hello_of(0, 2), hello_of(1, 2)};
  point.ranks[0].recovery = silent->address;
  point.ranks[1].recovery = point.address;
  point.key = "the key of these tests";
  std::thread gathering([&] {
    SurvivorConnections connections(point, {}, 2);
    EXPECT_FALSE(connections.gather().ok());
  });
  expect_another_user_is_disconnected({point.ranks[1].recovery});
  gathering.join();
}

// One after another they would take 2 s each.
TEST(OtherUsers, DoNotDelayTheSearchForHosts) {
  if (!OtherUser::is_possible()) return;
  SharedExchange exchange;
  const std::vector<HostFacts> facts(2, HostFacts{"a", "kernel", 1});
  std::vector<std::thread> ranks;
  const auto find = [&](int rank) {
    const int64_t began = now_ns();
    const auto world = find_hosts(rank, facts, kKey, exchange, Deadline::after_seconds(60));
    ASSERT_TRUE(world.ok()) << world.status().text();
    EXPECT_EQ((*world)[1].host_id, (*world)[0].host_id);
    EXPECT_LT(now_ns() - began, seconds_to_ns(15));
  };
  ranks.emplace_back(find, 0);
  const Address leader{exchange.fetch("hosts/0/socket", Deadline::after_seconds(20)).take()};
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const OtherUser other([&] {
    std::vector<UniqueFd> silent;
    for (int i = 0; i < 20; ++i)
      silent.push_back(connect_any(std::span(&leader, 1), Deadline::after_seconds(5)).take());
    if (::write(ready[1], "x", 1) == 1) ::pause();
    return 1;
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ranks.emplace_back(find, 1);
  for (std::thread& rank : ranks) rank.join();
  for (const int end : ready) ::close(end);
}

TEST(OtherUsers, ThatListenAreNoCoordinator) {
  if (!OtherUser::is_possible()) return;
  const std::string address = fresh_rendezvous();
  const auto listener = listen_as_another_user(address);
  const auto joined = CoordinatorClient::connect(address, kKey, hello_of(1, 2), Deadline::after_seconds(1));
  ASSERT_FALSE(joined.ok());
  EXPECT_THAT(joined.status().text(), HasSubstr("a process of another user listens at this address"));
}

TEST(OtherUsers, ThatListenAreNoJobToBeAsked) {
  if (!OtherUser::is_possible()) return;
  const LocalJob job{.socket = "farandole-query-4711-" + random_hex(8), .process_id = 4711};
  const auto listener = listen_as_another_user("unix:@" + job.socket);
  const auto view = query_local_job(job, Deadline::after_seconds(20));
  EXPECT_EQ(view.status().code(), Code::authentication);
  EXPECT_THAT(view.status().text(), HasSubstr("belongs to another user"));
}

}  // namespace
}  // namespace fdl
