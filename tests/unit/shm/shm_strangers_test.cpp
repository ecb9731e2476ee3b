// Tests of the socket over which shared memory is passed: other processes of the host may connect to it.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <latch>
#include <thread>

#include "system/event.h"
#include "system/handshake.h"
#include "system/poller.h"
#include "system/socket.h"
#include "tests/support/participant.h"
#include "tests/support/processes/other_user.h"
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

// One after another they would take 2 s each, which is longer than the deadline.
TEST(ShmStrangers, SilentConnectionsDelayNoMember) {
  std::vector<UniqueFd> silent;
  share_while([&](const Address& leader) {
    for (int i = 0; i < 30; ++i) {
      silent.push_back(require(connect_any(std::span(&leader, 1), Deadline::after_seconds(5))));
    }
  });
}

// On a busy machine a process may not run for seconds.
TEST(ShmStrangers, AMemberThatHasProvedTheKeyMayBeSlow) {
  Participant participant(2);
  run_ranks(2, [&](int rank) {
    const Membership membership = participant.membership(rank, Deadline::after_seconds(20));
    if (rank == 0) {
      require(share_segment(membership, {0, 1}, "strangers", 4096));
      return;
    }
    const Address leader = leader_of(participant);
    const UniqueFd fd = require(connect_any(std::span(&leader, 1), membership.deadline));
    require(introduce_as_client(fd.get(), membership.job_key, "shm " + membership.id + " strangers", "1",
                                membership.deadline));
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    const auto doorbell = require(take_doorbell());
    const Event liveness = require(Event::make());
    const int fds[] = {doorbell->event.fd(), liveness.fd()};
    const auto id = std::as_bytes(std::span(&doorbell->id, 1));
    require(write_all(fd.get(), id.first(3), membership.deadline));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    require(write_all(fd.get(), id.subspan(3), membership.deadline));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    require(send_fds(fd.get(), fds, membership.deadline));
    uint32_t decision = 1;
    require(read_all(fd.get(), std::as_writable_bytes(std::span(&decision, 1)), membership.deadline));
    EXPECT_EQ(decision, 0u);
  });
}

TEST(ShmStrangers, AnotherUserIsDisconnectedAtOnce) {
  if (!OtherUser::is_possible()) return;
  share_while([](const Address& leader) { expect_another_user_is_disconnected(leader); });
}

}  // namespace
}  // namespace fdl
