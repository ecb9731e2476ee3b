// Tests that ranks over MPI learn on which processors their peers run. The contract tests cover the rest of the
// transport.
#include "transports/mpi/mpi_transport.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <latch>
#include <memory>

#include "tests/fakes/mpi/fake_mpi.h"
#include "tests/support/participant.h"

namespace fdl {
namespace {

using namespace fdl::test;

constexpr Channel kToPeer[] = {{1, 0}, {0, 0}};  // by rank

// Two ranks over a fake MPI. It lives as long as the program, because a transport may leave requests in it.
class MpiProcessors : public testing::Test {
 protected:
  Result<std::unique_ptr<Transport>> connect(const Membership& membership) {
    auto* mpi = new FakeMpi(world_, membership.rank);
    return connect_mpi_over(*mpi, membership, {true, true});
  }

  // Both send one slice and receive one; then a receive of each waits.
  static void exchange(Transport& transport, int rank, uint64_t& awaited) {
    const Channel channel = kToPeer[rank];
    const uint64_t mine = 7;
    const Ticket sent = begin_send(transport, channel, 1, std::as_bytes(std::span(&mine, 1)));
    EXPECT_EQ(recv_number(transport, channel, 1), 7u);
    wait_done(transport, channel, sent);
    begin_recv(transport, channel, 2, std::as_writable_bytes(std::span(&awaited, 1)));
  }

  std::shared_ptr<FakeMpiWorld> world_ = std::make_shared<FakeMpiWorld>(2);
};

TEST_F(MpiProcessors, RanksKnowWhoRunsOnTheSameOne) {
  const std::vector<int> processors = allowed_processors();
  ASSERT_GE(processors.size(), 2u) << "this test needs two processors";
  Participant participant(2);
  std::latch waiting(2), apart(2), done(2);
  run_ranks(2, [&](int rank) {
    move_to(processors[0]);
    uint64_t awaited = 0;
    auto transport = require(connect(participant.membership(rank)));
    EXPECT_FALSE(transport->peer_activity().on_this_processor) << "no slice has come";
    exchange(*transport, rank, awaited);
    waiting.arrive_and_wait();
    EXPECT_TRUE(transport->peer_activity().on_this_processor);
    EXPECT_EQ(transport->peer_activity().should_leave, rank == 1) << "the lowest rank stays";
    if (rank == 1) move_to(processors[1]);
    apart.arrive_and_wait();
    const uint64_t number = 9;
    send(*transport, kToPeer[rank], 2, std::as_bytes(std::span(&number, 1)));
    wait_until(
        *transport, [&] { return awaited == 9; }, "the awaited slice is here");
    EXPECT_FALSE(transport->peer_activity().on_this_processor) << "nothing is awaited any more, and they are apart";
    begin_recv(*transport, kToPeer[rank], 3, std::as_writable_bytes(std::span(&awaited, 1)));
    EXPECT_FALSE(transport->peer_activity().on_this_processor) << "they are apart";
    done.arrive_and_wait();
  });
}

TEST_F(MpiProcessors, NumbersOfAnotherHostMeanNothing) {
  Participant participant(2);
  std::latch waiting(2), done(2);
  run_ranks(2, [&](int rank) {
    move_to(allowed_processors().front());
    Membership membership = participant.membership(rank);
    membership.members[1].host_id = "another host";
    uint64_t awaited = 0;
    auto transport = require(connect(membership));
    exchange(*transport, rank, awaited);
    waiting.arrive_and_wait();
    EXPECT_FALSE(transport->peer_activity().on_this_processor);
    done.arrive_and_wait();
  });
}

}  // namespace
}  // namespace fdl
