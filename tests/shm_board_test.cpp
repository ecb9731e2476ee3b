// Tests of the shared-memory board: whoever sleeps is woken by what it watches, and by nothing else.
#include "transports/shm/shm_board.h"

#include <gtest/gtest.h>

#include <barrier>

#include "tests/support/party.h"
#include "transports/shm/shm_host.h"

namespace fdl {
namespace {

using namespace fdl::test;

constexpr int kRanks = 3;

// Each rank has a board (beside collectives, with which it shares its bell), and a barrier between threads.
void run_boards(const std::function<void(int rank, ReadinessBoard& board, Collectives& collectives)>& body) {
  Party party(kRanks);
  std::barrier<> all_there(kRanks);
  run_ranks(kRanks, [&](int rank) {
    const Membership membership = party.membership(rank);
    ShmHost host = require(make_shm_host(membership));
    body(rank, *host.board, *host.collectives);
    all_there.arrive_and_wait();  // who leaves wakes the others
  });
}

void wait_for_word(ReadinessBoard& board, int rank, uint64_t word) {
  const Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
  while (board.word_of(rank) != word) {
    require(!deadline.passed(), "waited in vain for rank " + std::to_string(rank));
    board.sleep_until_ready(deadline);
  }
}

bool is_rung(const ReadinessBoard& board) { return wait_readable(board.wake_fd(), Deadline::at_ns(0)); }

TEST(ShmBoard, ShowsEveryRankTheLastWordOfEachOther) {
  run_boards([](int rank, ReadinessBoard& board, Collectives&) {
    board.watch(~uint64_t{0});
    board.publish(static_cast<uint64_t>(10 + rank));
    for (int other = 0; other < kRanks; ++other) wait_for_word(board, other, static_cast<uint64_t>(10 + other));
  });
}

TEST(ShmBoard, LosesNoBellHoweverOftenTwoRanksSleepForEachOther) {
  run_boards([](int rank, ReadinessBoard& board, Collectives&) {
    if (rank == 2) return;
    board.watch(uint64_t{1} << (1 - rank));
    for (uint64_t turn = 1; turn <= 5000; ++turn) {
      if (rank == 0) board.publish(turn);
      wait_for_word(board, 1 - rank, turn);
      if (rank == 1) board.publish(turn);
    }
  });
}

TEST(ShmBoard, RingsWhoWatchesAndWhoeverSleepsWhereItIsUrgent) {
  std::barrier<> step(kRanks);
  run_boards([&](int rank, ReadinessBoard& board, Collectives&) {
    board.watch(rank == 1 ? 1 : 0);
    if (rank > 0) {
      EXPECT_TRUE(board.prepare_to_sleep());
    }
    step.arrive_and_wait();
    if (rank == 0) board.publish(1);
    step.arrive_and_wait();
    if (rank > 0) {
      EXPECT_EQ(is_rung(board), rank == 1);
    }
    step.arrive_and_wait();
    if (rank == 0) board.publish(2 | ReadinessBoard::kUrgent);
    step.arrive_and_wait();
    if (rank == 2) {
      EXPECT_TRUE(is_rung(board));
    }
    board.finish_sleep();
    EXPECT_FALSE(is_rung(board));
  });
}

TEST(ShmBoard, TellsOfAChangeBeforeASleepOnce) {
  std::barrier<> step(kRanks);
  run_boards([&](int rank, ReadinessBoard& board, Collectives&) {
    board.watch(1);
    if (rank == 0) board.publish(9);
    step.arrive_and_wait();
    if (rank > 0) {
      EXPECT_FALSE(board.prepare_to_sleep());
      board.finish_sleep();
      EXPECT_TRUE(board.prepare_to_sleep());
      board.finish_sleep();
    }
  });
}

TEST(ShmBoard, WakesAlsoWhoSleepsInACollective) {
  run_boards([](int rank, ReadinessBoard& board, Collectives& collectives) {
    const Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
    board.watch(rank == 2 ? 0 : uint64_t{1} << 2);
    Completion completion;
    CollectiveSpec spec;
    spec.collective = Collective::barrier;
    if (rank == 2) {
      board.publish(5);
    } else {  // the barrier cannot end, for rank 2 is not there
      collectives.start(spec, {}, completion);
      while (board.word_of(2) != 5) {
        require(!deadline.passed(), "waited in vain");
        collectives.progress();
        const bool quiet = collectives.prepare_to_sleep() && board.prepare_to_sleep();
        if (quiet) wait_readable(board.wake_fd(), deadline);
        collectives.finish_sleep();
        board.finish_sleep();
      }
    }
    if (rank == 2) collectives.start(spec, {}, completion);
    while (!completion.done) {
      require(!deadline.passed(), "the barrier did not end");
      if (!collectives.progress()) collectives.sleep_until_ready(deadline);
    }
    EXPECT_TRUE(completion.status.ok());
  });
}

}  // namespace
}  // namespace fdl
