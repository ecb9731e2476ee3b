// Tests of the socket over which shared memory is passed: other processes of the host may connect to it.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <latch>

#include "system/poller.h"
#include "system/socket.h"
#include "tests/support/participant.h"
#include "transports/shm/shm_segment.h"

namespace fdl {
namespace {

using namespace fdl::test;

Address leader_of(Participant& participant) {
  const Membership membership = participant.membership(0);
  return {require(membership.exchange->fetch(participant.id() + "/shm/strangers/0", Deadline::after_seconds(20)))};
}

// Rank 0 leads. Rank 1 joins when `visit` has been to the leader's socket.
void share_while(const std::function<void(const Address&)>& visit) {
  Participant participant(2);
  std::latch visited(1);
  run_ranks(3, [&](int rank) {
    if (rank == 2) {
      visit(leader_of(participant));
      visited.count_down();
      return;
    }
    if (rank == 1) visited.wait();
    require(share_segment(participant.membership(rank, Deadline::after_seconds(20)), {0, 1}, "strangers", 4096));
  });
}

TEST(ShmStrangers, AnotherUserIsDisconnectedAtOnce) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  share_while([](const Address& leader) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
      auto fd = connect_any(std::span(&leader, 1), Deadline::after_seconds(5));
      if (!fd.ok()) ::_exit(3);
      // The end of the connection, and no greeting before it.
      if (!wait_readable(fd->get(), Deadline::after_seconds(1.5))) ::_exit(4);
      char byte = 0;
      ::_exit(::recv(fd->get(), &byte, 1, 0) <= 0 ? 0 : 5);
    }
    int outcome = 0;
    ASSERT_EQ(::waitpid(child, &outcome, 0), child);
    EXPECT_TRUE(WIFEXITED(outcome));
    EXPECT_EQ(WEXITSTATUS(outcome), 0);
  });
}

}  // namespace
}  // namespace fdl
