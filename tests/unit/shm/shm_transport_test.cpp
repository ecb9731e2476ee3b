// These tests cover what the shared-memory transport promises beyond the contract: data of dead peers, parts of a
// communicator, many ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <latch>

#include "tests/support/descriptors.h"
#include "tests/support/participant.h"
#include "transports/shm/shm_host.h"

namespace fdl {
namespace {

using namespace fdl::test;
using testing::HasSubstr;

constexpr Channel channel(int peer, int index = 0) { return Channel{peer, index}; }

Result<std::unique_ptr<Transport>> connect_all(const Membership& membership) {
  return connect_shm(membership, std::vector<bool>(static_cast<std::size_t>(membership.size()), true));
}

TEST(ShmTransport, DeliversDataWrittenBeforeTheProcessWasKilled) {
  constexpr uint64_t kCount = 30;
  Participant participant(2);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto transport = connect_all(participant.membership(1));
    if (!transport.ok()) ::_exit(1);
    for (uint64_t i = 0; i < kCount; ++i) send_number(**transport, channel(0, static_cast<int>(i % 2)), 7, i);
    ::kill(::getpid(), SIGKILL);
  }
  auto transport = require(connect_all(participant.membership(0)));
  int state = 0;
  ::waitpid(child, &state, 0);
  ASSERT_TRUE(WIFSIGNALED(state));
  for (uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(recv_number(*transport, channel(1, static_cast<int>(i % 2)), 7), i);
  }
  const Status lost = wait_lost(*transport, 1);
  EXPECT_EQ(lost.code(), Code::peer_lost);
  EXPECT_EQ(lost.error().culprit_rank, 11);
  EXPECT_EQ(lost.error().culprit_host, "host-b");
  EXPECT_THAT(lost.text(), HasSubstr("shm: rank 11 (host-b, process "));
  EXPECT_THAT(lost.text(), HasSubstr("its process ended"));
}

TEST(ShmTransport, ReportsADepartedPeerOnlyWhenItIsNeeded) {
  std::latch left(2);
  Participant participant(2);
  participant.run(connect_all, [&](int rank, std::unique_ptr<Transport> transport) {
    if (rank == 1) {
      send_number(*transport, channel(0), 1, 41);
      transport.reset();
      left.count_down();
      return;
    }
    left.arrive_and_wait();
    transport->progress();
    require(transport->status());
    EXPECT_EQ(recv_number(*transport, channel(1), 1), 41u);
    require(transport->status());
    uint64_t number = 0;
    const auto ticket = transport->recv(channel(1), 1, std::as_writable_bytes(std::span(&number, 1)));
    EXPECT_THAT(wait_lost(*transport, 1).text(), HasSubstr("rank 11 (host-b) has left"));
    EXPECT_FALSE(ticket && transport->done(*ticket));
  });
}

TEST(ShmTransport, ConnectsTheMembersOfEachHost) {
  // Members 0 and 2 are on one host; 1, 3 and 4 are on another. Channels use the ranks of the communicator.
  Participant participant(5);
  run_ranks(5, [&](int rank) {
    std::vector<bool> peers(5);
    for (int i = 0; i < 5; ++i) peers[static_cast<std::size_t>(i)] = (i == 0 || i == 2) == (rank == 0 || rank == 2);
    auto transport = require(connect_shm(participant.membership(rank), peers));
    for (int peer = 0; peer < 5; ++peer) {
      if (peer == rank || !peers[static_cast<std::size_t>(peer)]) continue;
      const auto mine = static_cast<uint64_t>(rank * 10 + peer);
      const Ticket sent = begin_send(*transport, channel(peer, 1), 9, std::as_bytes(std::span(&mine, 1)));
      EXPECT_EQ(recv_number(*transport, channel(peer, 1), 9), static_cast<uint64_t>(peer * 10 + rank));
      wait_done(*transport, peer, sent);
    }
  });
}

TEST(ShmTransport, ServesManyRanksOfOneHost) {
  raise_descriptor_limit();
  for (const int size : {17, 64}) {
    Participant participant(size);
    participant.run(connect_all, [&](int rank, std::unique_ptr<Transport> transport) {
      // Larger than a ring among so many ranks.
      const auto mine = pattern(40'000, static_cast<uint64_t>(rank));
      std::vector<std::byte> theirs(mine.size());
      for (int distance = 1; distance < size; distance += 7) {
        const int next = (rank + distance) % size, prev = (rank + size - distance) % size;
        const auto tag = static_cast<uint32_t>(distance);
        const Ticket in = begin_recv(*transport, channel(prev), tag, theirs);
        const Ticket out = begin_send(*transport, channel(next), tag, mine);
        wait_done(*transport, prev, in);
        wait_done(*transport, next, out);
        require(theirs == pattern(mine.size(), static_cast<uint64_t>(prev)), "every byte is in its place");
      }
    });
  }
}

TEST(ShmTransport, RefusesOneRankAndMoreThan64Ranks) {
  Participant alone(1), crowd(65);
  const auto one = connect_all(alone.membership(0));
  ASSERT_FALSE(one.ok());
  EXPECT_EQ(one.status().code(), Code::unsupported);
  const auto many = connect_all(crowd.membership(0));
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.status().code(), Code::unsupported);
  EXPECT_THAT(many.status().text(), HasSubstr("65 ranks on one host, at most 64"));
}

TEST(ShmTransport, LeavesNoDescriptorOpen) {
  const auto ring = [](int rank, std::unique_ptr<Transport> transport) {
    uint64_t number = 5;
    const Ticket sent = begin_send(*transport, channel((rank + 1) % 3), 1, std::as_bytes(std::span(&number, 1)));
    require(recv_number(*transport, channel((rank + 2) % 3), 1) == 5, "the number");
    wait_done(*transport, (rank + 1) % 3, sent);
  };
  Participant first(3);
  first.run(connect_all, ring);
  const std::size_t before = open_descriptors();
  Participant second(3);
  second.run(connect_all, ring);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ShmTransport, ReportsMemoryThatIsTooSmall) {
  for (const char* bytes : {"900G", "900000G"}) {
    Participant participant(2);
    participant.config() = require(Config::read(Environment({}), {{"shm_bytes", bytes}}));
    const auto result = connect_all(participant.membership(0));
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::resource);
    EXPECT_THAT(result.status().text(), HasSubstr("FARANDOLE_SHM_BYTES"));
  }
}

}  // namespace
}  // namespace fdl
