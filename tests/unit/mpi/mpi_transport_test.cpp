// Tests that ranks over MPI learn on which processors their peers run. The contract tests cover the rest of the
// transport.
#include "transports/mpi/mpi_transport.h"

#include <gtest/gtest.h>

#include <latch>
#include <memory>

#include "tests/contract/processors.h"
#include "tests/fakes/mpi/fake_mpi.h"
#include "tests/support/participant.h"

namespace fdl {
namespace {

using namespace fdl::test;

// Two ranks over a fake MPI. It lives as long as the program, because a transport may leave requests in it.
class MpiProcessors : public testing::Test {
 protected:
  Result<std::unique_ptr<Transport>> connect(const Membership& membership) {
    auto* mpi = new FakeMpi(world_, membership.rank);
    return connect_mpi_over(*mpi, membership, {true, true});
  }

  std::shared_ptr<FakeMpiWorld> world_ = std::make_shared<FakeMpiWorld>(2);
};

TEST_F(MpiProcessors, RanksKnowWhoRunsOnTheSameOne) {
  expect_processors_are_known([this](const Membership& membership) { return connect(membership); });
}

TEST_F(MpiProcessors, NumbersOfAnotherHostMeanNothing) {
  Participant participant(2);
  std::latch waiting(2), done(2);
  run_ranks(2, [&](int rank) {
    move_to(allowed_processors().front());
    Membership membership = participant.membership(rank);
    membership.members.edit()[1].host_id = "another host";
    uint64_t awaited = 0;
    auto transport = require(connect(membership));
    exchange_then_await(*transport, rank, awaited);
    waiting.arrive_and_wait();
    EXPECT_FALSE(transport->peer_activity().on_this_processor);
    done.arrive_and_wait();
  });
}

}  // namespace
}  // namespace fdl
