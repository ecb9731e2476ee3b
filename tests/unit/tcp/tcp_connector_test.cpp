// These tests cover connections that are made at their first use: both ranks at once, ranks that do not drive,
// communicators that are not made yet or have ended, peers that cannot be reached, and what is never connected.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <latch>
#include <thread>

#include "system/handshake.h"
#include "system/socket.h"
#include "tests/support/participant.h"
#include "tests/unit/tcp/all_pairs.h"
#include "transports/tcp/assembly.h"
#include "transports/tcp/links.h"
#include "transports/tcp/tcp_transport.h"

namespace fdl {
namespace {

using namespace fdl::test;
using testing::AllOf;
using testing::HasSubstr;

constexpr Channel channel(int peer, int index = 0) { return Channel{peer, index}; }

// One rank of a world with a connector, in a thread of the test.
class Rank {
 public:
  Rank(Participant& world, int rank) : world_(world), membership_(world.membership(rank)) {
    membership_.tcp_connector =
        require(start_tcp_connector(membership_, std::make_unique<ExchangeOf>(*membership_.exchange)));
  }
  ~Rank() { stop_tcp_connector(*membership_.tcp_connector); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  Membership membership(const std::string& id = "") const {
    Membership made = membership_;
    if (!id.empty()) made.id = id;
    return made;
  }
  std::unique_ptr<Transport> connect(const std::string& id = "", int streams = 1) const {
    return require(connect_tcp_on_demand(
        membership(id), std::vector<int>(static_cast<std::size_t>(world_.size()), streams), membership_.tcp_connector));
  }

 private:
  Participant& world_;
  Membership membership_;
};

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(descriptors), end(descriptors)));
}

TEST(TcpConnector, ConnectsAllPairsThoughBothCallAtOnce) {
  constexpr int kSize = 6;
  for (int round = 0; round < 10; ++round) {
    Participant world(kSize);
    std::barrier checked(kSize);
    run_ranks(kSize, [&](int number) {
      const Rank rank(world, number);
      for (int streams = 1; streams <= 3; streams += 2) {
        auto transport = rank.connect("comm " + std::to_string(streams), streams);
        exchange_with_all(*transport, number, kSize);
        exchange_with_all(*transport, number, kSize);
        EXPECT_TRUE(transport->status().ok()) << transport->status().text();
        // A transport that ends is an error on the others, which may also need this rank's listener.
        checked.arrive_and_wait();
      }
    });
  }
}

// Both ranks demand every connection at the same moment, so that the calls cross in many ways.
TEST(TcpConnector, KeepsOneOfTwoCallsThatCross) {
  constexpr int kRounds = 300;
  Participant world(2);
  std::barrier together(2);
  run_ranks(2, [&](int number) {
    const Rank rank(world, number);
    for (int round = 0; round < kRounds; ++round) {
      auto transport = rank.connect("comm " + std::to_string(round));
      together.arrive_and_wait();
      exchange_with_all(*transport, number, 2);
      EXPECT_TRUE(transport->status().ok()) << transport->status().text();
      together.arrive_and_wait();
    }
  });
}

TEST(TcpConnector, ConnectsOnlyWhatIsUsed) {
  constexpr int kSize = 12;
  Participant world(kSize);
  std::latch made(kSize + 1), counted(kSize + 1), used(kSize + 1), ended(kSize + 1);
  std::thread counter([&] {
    made.arrive_and_wait();
    const std::size_t before = open_descriptors();
    counted.arrive_and_wait();
    used.arrive_and_wait();
    // A ring has one connection between two neighbours, which is two descriptors of this process.
    EXPECT_EQ(open_descriptors() - before, 2u * kSize);
    ended.arrive_and_wait();
  });
  run_ranks(kSize, [&](int number) {
    const Rank rank(world, number);
    auto transport = rank.connect();
    made.arrive_and_wait();
    counted.arrive_and_wait();
    auto mine = static_cast<uint64_t>(number);
    const int next = (number + 1) % kSize;
    const int previous = (number + kSize - 1) % kSize;
    const Ticket ticket = begin_send(*transport, channel(next), 9, std::as_bytes(std::span(&mine, 1)));
    EXPECT_EQ(recv_number(*transport, channel(previous), 9), static_cast<uint64_t>(previous));
    wait_done(*transport, next, ticket);
    used.arrive_and_wait();
    ended.arrive_and_wait();
  });
  counter.join();
}

TEST(TcpConnector, ReachesARankThatDoesNotDrive) {
  for (int sender = 0; sender < 2; ++sender) {
    Participant world(2);
    std::latch sent(2);
    run_ranks(2, [&](int number) {
      const Rank rank(world, number);
      auto transport = rank.connect();
      if (number == sender) send_number(*transport, channel(1 - number), 1, 5);
      sent.arrive_and_wait();
      if (number != sender) {
        EXPECT_EQ(recv_number(*transport, channel(sender), 1), 5u);
      }
    });
  }
}

TEST(TcpConnector, WaitsForACommunicatorThatThePeerHasNotMadeYet) {
  for (int early = 0; early < 2; ++early) {
    Participant world(2);
    run_ranks(2, [&](int number) {
      const Rank rank(world, number);
      if (number != early) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      auto transport = rank.connect();
      exchange_with_all(*transport, number, 2);
    });
  }
}

// The coordinator refuses a query with more ranks than there are.
TEST(TcpConnector, DoubtsEachPeerOnce) {
  Participant world(3);
  world.config().lost_after_s = 0.02;
  const Rank me(world, 0), second(world, 1), third(world, 2);
  const auto transport = me.connect(), at_second = second.connect(), at_third = third.connect();
  std::array<std::byte, 4> sent{}, received{};
  const auto receive = [&](int peer, int index) { return transport->recv(channel(peer, index), 7, received); };
  // So the connections of a peer do not follow each other.
  for (int index = 0; index < kChannelCount; ++index) {
    for (const int peer : {1, 2}) {
      Transport& other = peer == 1 ? *at_second : *at_third;
      const auto posted = receive(peer, index);
      ASSERT_TRUE(posted && other.send(channel(0, index), 7, sent));
      while (!transport->done(*posted)) {
        transport->progress();
        other.progress();
        ASSERT_TRUE(transport->status().ok()) << transport->status().text();
      }
    }
  }
  for (int index = 0; index < kChannelCount; ++index) {
    for (const int peer : {1, 2}) ASSERT_TRUE(receive(peer, index));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_THAT(transport->awaited_peers(), testing::UnorderedElementsAre(1, 2));
}

TEST(TcpConnector, KeepsCommunicatorsApart) {
  Participant world(2);
  run_ranks(2, [&](int number) {
    const Rank rank(world, number);
    auto one = rank.connect("one");
    auto other = rank.connect("other");
    const int peer = 1 - number;
    if (number == 0) {
      send_number(*one, channel(peer), 1, 1);
      send_number(*other, channel(peer), 1, 2);
    } else {
      EXPECT_EQ(recv_number(*other, channel(peer), 1), 2u);
      EXPECT_EQ(recv_number(*one, channel(peer), 1), 1u);
    }
    exchange_with_all(*one, number, 2);
  });
}

TEST(TcpConnector, DeliversWhatWasSentBeforeACommunicatorEnds) {
  Participant world(2);
  run_ranks(2, [&](int number) {
    const Rank rank(world, number);
    auto transport = rank.connect();
    if (number == 0) {
      for (uint64_t i = 0; i < 10; ++i) send_number(*transport, channel(1), 1, i);
      transport.reset();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(recv_number(*transport, channel(0), 1), i);
    }
  });
}

// A rank that uses a channel for the first time after the peer has ended the communicator, but not the world.
TEST(TcpConnector, TellsThatThePeerHasLeft) {
  for (int leaver = 0; leaver < 2; ++leaver) {
    Participant world(2);
    std::latch left(2), seen(2);
    run_ranks(2, [&](int number) {
      const Rank rank(world, number);
      auto transport = rank.connect();
      if (number == leaver) transport.reset();
      left.arrive_and_wait();
      if (number != leaver) {
        std::byte byte{};
        begin_recv(*transport, channel(leaver), 1, std::span(&byte, 1));
        const Status lost = wait_lost(*transport, leaver);
        EXPECT_EQ(lost.code(), Code::peer_lost);
        EXPECT_EQ(lost.error().culprit_rank, world_rank_of(leaver));
        EXPECT_THAT(lost.text(), AllOf(HasSubstr(host_of(leaver)), HasSubstr("has left")));
      }
      seen.arrive_and_wait();
    });
  }
}

// The first error of rank 0 when it sends to rank 1, whose process is described by `peer`.
Status error_of_send(Participant& world, const std::function<void(Membership&)>& edit = {}) {
  Membership membership = world.membership(0);
  if (edit) edit(membership);
  membership.tcp_connector =
      require(start_tcp_connector(membership, std::make_unique<ExchangeOf>(*membership.exchange)));
  auto transport = require(connect_tcp_on_demand(membership, {1, 1}, membership.tcp_connector));
  const std::byte byte{};
  begin_send(*transport, channel(1), 1, std::span(&byte, 1));
  const Status lost = wait_lost(*transport, 1);
  transport.reset();
  stop_tcp_connector(*membership.tcp_connector);
  return lost;
}

TEST(TcpConnector, NamesARankThatPublishedNoAddress) {
  Participant world(2);
  world.config().start_timeout_s = 0.5;
  world.config().lost_after_s = 0.5;
  const Status error = error_of_send(world);
  EXPECT_EQ(error.code(), Code::timeout);
  EXPECT_EQ(error.error().culprit_rank, world_rank_of(1));
  EXPECT_THAT(error.text(), HasSubstr("rank 11 (host-b) did not publish an address"));
}

TEST(TcpConnector, NamesARankThatDoesNotListenAnyMore) {
  Participant world(2);
  { const Rank gone(world, 1); }
  const Status error = error_of_send(world);
  EXPECT_EQ(error.code(), Code::peer_lost);
  EXPECT_THAT(error.text(), HasSubstr("rank 11 (host-b) does not listen any more: it has left"));
}

TEST(TcpConnector, GivesTheReasonWhyARankCannotBeReached) {
  Participant world(2);
  world.config().start_timeout_s = 0.5;
  world.config().lost_after_s = 0.5;
  require(world.membership(1).exchange->publish("tcp/11", "no-address"));
  const Status error = error_of_send(world);
  EXPECT_EQ(error.code(), Code::timeout);
  EXPECT_THAT(error.text(),
              AllOf(HasSubstr("rank 11 (host-b) cannot be reached: no-address"), HasSubstr("start_timeout_s")));
}

// A rank 1 that does the handshakes of all calls and then closes them, or reads the proof and is stopped.
Status error_of_call_to(bool answers) {
  Participant world(2);
  world.config().start_timeout_s = 0.5;
  world.config().lost_after_s = 0.5;
  const Membership callee = world.membership(1);
  const Listening listening = require(listen_tcp("lo"));
  require(callee.exchange->publish("tcp/11", join_addresses(listening.addresses)));
  std::atomic<bool> ended = false;
  std::thread process([&] {
    std::vector<UniqueFd> stopped;
    while (!ended) {
      UniqueFd fd = require(accept_one(listening.fd.get()));
      if (!fd) continue;
      if (answers) {
        const std::string purpose = fmt::format("tcp connector {} {}", callee.id, tcp_protection_of(callee));
        static_cast<void>(introduce_as_server(fd.get(), callee.job_key, purpose, "11", Deadline::after_seconds(10)));
      } else {
        Introduction introduction(Introduction::Role::server, callee.job_key, "", "11");
        static_cast<void>(introduction.advance(fd.get()));
        stopped.push_back(std::move(fd));
      }
    }
  });
  Status error = error_of_send(world);
  ended = true;
  process.join();
  return error;
}

TEST(TcpConnector, GivesUpARankThatClosesAllCalls) {
  const Status error = error_of_call_to(true);
  EXPECT_EQ(error.code(), Code::timeout);
  EXPECT_EQ(error.error().culprit_rank, world_rank_of(1));
  EXPECT_THAT(error.text(), HasSubstr("rank 11 (host-b) cannot be reached:"));
}

TEST(TcpConnector, GivesUpARankThatDoesNotAnswerItsProof) {
  const Status error = error_of_call_to(false);
  EXPECT_EQ(error.code(), Code::timeout);
  EXPECT_EQ(error.error().culprit_rank, world_rank_of(1));
  EXPECT_THAT(error.text(), AllOf(HasSubstr("rank 11 (host-b) cannot be reached:"), HasSubstr("no answer in time")));
}

TEST(TcpConnector, NamesTheRankWithAnotherKey) {
  Participant world(2);
  const Rank other(world, 1);
  const Status error =
      error_of_send(world, [](Membership& membership) { membership.job_key = "the key of another job"; });
  EXPECT_EQ(error.code(), Code::authentication);
  EXPECT_EQ(error.error().culprit_rank, world_rank_of(1));
  EXPECT_THAT(error.text(), AllOf(HasSubstr("rank 11 (host-b)"), HasSubstr("same job key")));
}

TEST(TcpConnector, NamesTheRankWithAnotherNumberOfStreams) {
  Participant world(2);
  std::latch seen(2);
  run_ranks(2, [&](int number) {
    const Rank rank(world, number);
    auto transport = rank.connect("", number + 1);
    if (number == 0) {
      const Status error = wait_lost(*transport, 1);
      EXPECT_EQ(error.code(), Code::invalid_argument);
      EXPECT_THAT(error.text(), AllOf(HasSubstr("rank 11 (host-b) carries a channel over 2"),
                                      HasSubstr("rank 10 (host-a) over 1"), HasSubstr("tcp_streams")));
    } else {
      const std::byte byte{};
      begin_send(*transport, channel(0), 1, std::span(&byte, 1));
    }
    seen.arrive_and_wait();
  });
}

// The descriptors are used up after the set-up of rank 0, in a process of its own.
TEST(TcpConnector, ReportsThatNoDescriptorIsLeft) {
  const pid_t child = ::fork();
  if (child == 0) {
    Participant world(2);
    const Rank other(world, 1);
    const Rank rank(world, 0);
    auto transport = rank.connect();
    const UniqueFd next(::dup(0));
    const rlimit limit{static_cast<rlim_t>(next.get() + 1), static_cast<rlim_t>(next.get() + 1)};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const std::byte byte{};
    begin_send(*transport, channel(1), 1, std::span(&byte, 1));
    const Status lost = wait_lost(*transport, 1);
    ::_exit(lost.code() == Code::resource && lost.text().find("ulimit -n") != std::string::npos ? 0 : 1);
  }
  int state = 0;
  ::waitpid(child, &state, 0);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

// A mesh misses a rank that never comes at its set-up.
TEST(TcpConnector, IsUsedWhereThereIsOne) {
  Participant world(3);
  const Rank rank(world, 0);
  Membership membership = rank.membership();
  membership.deadline = Deadline::after_seconds(0.2);
  EXPECT_TRUE(connect_tcp(membership, {true, true, true}).ok());
  membership.tcp_connector = nullptr;
  EXPECT_EQ(connect_tcp(membership, {true, true, true}).status().code(), Code::timeout);
}

}  // namespace
}  // namespace fdl
