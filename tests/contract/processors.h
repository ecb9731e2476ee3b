// expect_processors_are_known() tests what the ranks of a transport learn of the processors on which their peers run.
#pragma once

#include <gtest/gtest.h>

#include <latch>

#include "tests/support/participant.h"

namespace fdl::test {

constexpr Channel kToPeer[] = {{1, 0}, {0, 0}};  // by rank

// Both of two ranks send one slice and receive one; then a receive of each waits.
inline void exchange_then_await(Transport& transport, int rank, uint64_t& awaited) {
  const Channel channel = kToPeer[rank];
  const uint64_t mine = 7;
  const Ticket sent = begin_send(transport, channel, 1, std::as_bytes(std::span(&mine, 1)));
  EXPECT_EQ(recv_number(transport, channel, 1), 7u);
  wait_done(transport, channel, sent);
  begin_recv(transport, channel, 2, std::as_writable_bytes(std::span(&awaited, 1)));
}

// Two ranks share a processor; then rank 1 moves to another one.
inline void expect_processors_are_known(const Connect& connect) {
  const std::vector<int> processors = allowed_processors();
  ASSERT_GE(processors.size(), 2u) << "this test needs two processors";
  Participant participant(2);
  std::latch waiting(2), apart(2), done(2);
  run_ranks(2, [&](int rank) {
    move_to(processors[0]);
    uint64_t awaited = 0;
    auto transport = require(connect(participant.membership(rank)));
    EXPECT_FALSE(transport->peer_activity().on_this_processor) << "no slice has come";
    exchange_then_await(*transport, rank, awaited);
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

}  // namespace fdl::test
