// SurvivorConnections over real sockets: ranks as threads agree on the members of a new world, and strangers do not
// disturb them.
#include "bootstrap/recovery/survivor_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

#include "bootstrap/topology/topology.h"

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The recovery points of all ranks of a world.
std::vector<RecoveryPoint> points_of(int size, const std::string& rendezvous) {
  std::vector<RecoveryPoint> points;
  std::vector<CoordinatorClient::Hello> hellos;
  for (int rank = 0; rank < size; ++rank) {
    auto opened = open_recovery_point(rendezvous, Config());
    EXPECT_TRUE(opened.ok()) << opened.status().text();
    points.push_back(opened.take());
    hellos.push_back(
        {.rank = rank, .size = size, .host_name = "host", .process_id = 100 + rank, .recovery = points.back().address});
  }
  for (int rank = 0; rank < size; ++rank) {
    RecoveryPoint& point = points[static_cast<std::size_t>(rank)];
    point.me = rank;
    point.ranks = hellos;
    for (int member = 0; member < size; ++member) point.members.push_back(member);
    point.key = "the key of these tests";
  }
  return points;
}

// The ranks in `calling` meet, and the lowest gives the others its address.
void expect_to_meet(std::vector<RecoveryPoint>& points, const std::vector<int>& calling) {
  std::vector<std::thread> threads;
  for (const int rank : calling) {
    threads.emplace_back([&, rank] {
      RecoveryPoint& point = points[static_cast<std::size_t>(rank)];
      SurvivorConnections connections(point, {}, 30);
      const Status met = connections.gather();
      ASSERT_TRUE(met.ok()) << met.text();
      EXPECT_EQ(point.members, calling);
      EXPECT_EQ(point.round, 1U);
      const auto address = connections.share(rank == calling.front() ? "the address" : "");
      ASSERT_TRUE(address.ok()) << address.status().text();
      EXPECT_EQ(*address, "the address");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class Meetings : public testing::TestWithParam<const char*> {};

TEST_P(Meetings, RanksWhoseListenersAreClosedAreLeftOut) {
  auto points = points_of(4, GetParam());
  points[0].listener.reset();
  points[2].listener.reset();
  expect_to_meet(points, {1, 3});
}

TEST_P(Meetings, StrangersAreIgnored) {
  auto points = points_of(3, GetParam());
  std::vector<UniqueFd> strangers;
  for (const RecoveryPoint& point : points) {
    const std::string address = point.address.substr(0, point.address.find(','));
    for (int number = 0; number < 300; ++number) {  // more than are kept, and half of them silent
      auto fd = begin_connect({address});
      ASSERT_TRUE(fd.ok()) << fd.status().text();
      if (number % 2 == 0) {
        const std::string garbage(static_cast<std::size_t>(20 + number), static_cast<char>(number));
        static_cast<void>(::send(fd->get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
      }
      strangers.push_back(fd.take());
    }
  }
  expect_to_meet(points, {0, 1, 2});
}

// A rank of an earlier world, or of another job, has another key.
TEST_P(Meetings, AMessageUnderAnotherKeyIsIgnored) {
  auto points = points_of(2, GetParam());
  auto others = points_of(2, GetParam());
  others[0].ranks = points[0].ranks;
  others[0].key = "another key";
  std::thread stranger([&] {
    SurvivorConnections connections(others[0], {1}, 0.2);  // would exclude rank 1
    static_cast<void>(connections.gather());
  });
  stranger.join();
  expect_to_meet(points, {0, 1});
}

TEST_P(Meetings, ARankThatCallsAfterTheOthersHaveGoneOnWithoutItGetsAnError) {
  auto points = points_of(3, GetParam());
  {
    std::thread other([&] {
      SurvivorConnections connections(points[1], {0}, 30);
      EXPECT_TRUE(connections.gather().ok());
    });
    SurvivorConnections connections(points[2], {0}, 30);
    EXPECT_TRUE(connections.gather().ok());
    other.join();
  }
  points[1].listener.reset();
  points[2].listener.reset();
  SurvivorConnections late(points[0], {}, 30);
  const Status status = late.gather();
  EXPECT_EQ(status.code(), Code::peer_lost);
  EXPECT_THAT(status.text(), HasSubstr("rank 0 on host (process 100) is not in the new world"));
}

TEST_P(Meetings, ARankThatCallsAfterTheTimeoutGetsTheSameError) {
  auto points = points_of(3, GetParam());
  std::vector<std::string> texts(3);
  std::vector<std::thread> threads;
  for (const std::size_t rank : {0, 2}) {
    threads.emplace_back([&, rank] { texts[rank] = SurvivorConnections(points[rank], {}, 0.1).gather().text(); });
  }
  for (std::thread& thread : threads) thread.join();
  texts[1] = SurvivorConnections(points[1], {}, 30).gather().text();
  EXPECT_THAT(texts[0], HasSubstr("rank 1 on host (process 101) did not take part within 0.1 s"));
  EXPECT_THAT(texts, ElementsAre(texts[0], texts[0], texts[0]));
}

// A host that drops all packets, as behind a cut: nothing answers its address, and nothing refuses there.
TEST(MeetingsOverTcp, ARankThatCannotBeReachedIsLeftOut) {
  auto points = points_of(3, "tcp://127.0.0.1:1");
  const UniqueFd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in place{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t length = sizeof place;
  ASSERT_EQ(::bind(full.get(), reinterpret_cast<const sockaddr*>(&place), length), 0);
  ASSERT_EQ(::listen(full.get(), 0), 0);
  ASSERT_EQ(::getsockname(full.get(), reinterpret_cast<sockaddr*>(&place), &length), 0);
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(place.sin_port));
  std::vector<UniqueFd> waiting;
  while (waiting.size() < 8) {  // the kernel drops further calls once its queue is full
    auto fd = begin_connect({address});
    ASSERT_TRUE(fd.ok()) << fd.status().text();
    waiting.push_back(fd.take());
  }
  for (RecoveryPoint& point : points) point.ranks[1].recovery = address;
  std::vector<std::thread> threads;
  for (const std::size_t rank : {0, 2}) {
    threads.emplace_back([&, rank] {
      const Status met = SurvivorConnections(points[rank], {}, 30, 0.5).gather();
      EXPECT_TRUE(met.ok()) << met.text();
      EXPECT_THAT(points[rank].members, ElementsAre(0, 2));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Recovery, Meetings, testing::Values("unix:@a-name", "tcp://127.0.0.1:1"),
                         [](const auto& one) { return std::string(one.param).substr(0, 3) == "tcp" ? "Tcp" : "Unix"; });

}  // namespace
}  // namespace fdl
