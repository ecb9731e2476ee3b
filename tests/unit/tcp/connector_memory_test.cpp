// Tests of a connector whose memory runs short: each connection is made or refused with an error, no rank waits for
// ever, and the process goes on. Each trial lets another allocation fail.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>

#include "tests/support/participant.h"
#include "tests/support/refused_allocations.h"
#include "transports/tcp/tcp_transport.h"

namespace {

using refused_allocations::allowed;
using refused_allocations::more;
using refused_allocations::refused;
thread_local bool is_thread_of_the_test = false;

}  // namespace

bool refused_allocations::is_chosen() { return !is_thread_of_the_test; }

namespace fdl {
namespace {

using namespace fdl::test;

// Sends a number to the other rank on each channel, and receives one. The first error of the transport ends it.
Status exchange(Transport& transport, int peer) {
  for (int index = 0; index < kChannelCount; ++index) {
    const Channel channel{peer, index};
    auto mine = static_cast<uint64_t>(1 - peer);
    uint64_t theirs = 77;
    std::optional<Ticket> sent;
    std::optional<Ticket> received;
    const Deadline deadline = Deadline::after_seconds(20);
    const auto done = [&](const std::optional<Ticket>& ticket) { return ticket && transport.done(*ticket); };
    while (!done(sent) || !done(received)) {
      if (!sent) sent = transport.send(channel, 9, std::as_bytes(std::span(&mine, 1)));
      if (!received) received = transport.recv(channel, 9, std::as_writable_bytes(std::span(&theirs, 1)));
      if (!transport.progress()) std::this_thread::sleep_for(std::chrono::microseconds(100));
      FDL_RETURN_IF_ERROR(transport.status());
      FDL_RETURN_IF_ERROR(transport.channel_status(channel));
      if (deadline.passed()) {
        ADD_FAILURE() << "neither an exchange nor an error on channel " << index;
        return {};
      }
    }
    EXPECT_EQ(theirs, static_cast<uint64_t>(peer));
  }
  return {};
}

// Lets allocations `first`, `first` + `step`, ... fail in turn, and `following` ones with each, until none fails any
// more.
void refuse_each(int first, int step, int following) {
  for (int number = first;; number += step) {
    SCOPED_TRACE(number);
    refused = 0;
    more = following;
    Participant world(2);
    std::latch ready(2);
    std::latch done(2);
    std::atomic<int> failures{0};
    is_thread_of_the_test = true;
    run_ranks(2, [&](int rank) {
      is_thread_of_the_test = true;
      Membership membership = world.membership(rank);
      membership.tcp_connector =
          require(start_tcp_connector(membership, std::make_unique<ExchangeOf>(*membership.exchange)));
      ready.arrive_and_wait();
      if (rank == 0) allowed = number;
      auto transport = require(connect_tcp_on_demand(membership, {1, 1}, membership.tcp_connector));
      const Status status = exchange(*transport, 1 - rank);
      if (!status.ok()) {
        ++failures;
        const bool is_of_memory = status.text().find("makes no connections any more") != std::string::npos;
        // A listener of another process, such as a test that runs beside this one, may have got the port of the one
        // that has ended, and refuses the call.
        const bool is_of_another = status.text().find("refused the proof") != std::string::npos;
        EXPECT_EQ(status.code(), is_of_memory    ? Code::resource
                                 : is_of_another ? Code::authentication
                                                 : Code::peer_lost)
            << status.text();
        EXPECT_GE(status.error().culprit_rank, 0) << status.text();
      }
      transport.reset();
      done.arrive_and_wait();  // the other rank may need this one's listener
      allowed = -1;
      stop_tcp_connector(*membership.tcp_connector);
    });
    if (testing::Test::HasFailure()) return;
    if (refused > 0) continue;
    EXPECT_EQ(failures, 0);
    EXPECT_GT(number, 20);
    return;
  }
}

TEST(ConnectorMemory, AShortageRefusesConnections) { refuse_each(0, 2, 0); }

TEST(ConnectorMemory, AShortageAtAnotherAllocationRefusesConnections) { refuse_each(1, 2, 0); }

// It meets the thread also as it ends.
TEST(ConnectorMemory, AShortageThatLastsRefusesConnections) { refuse_each(0, 1, 1'000'000); }

}  // namespace
}  // namespace fdl
