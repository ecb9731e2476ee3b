// Tests of the shared-memory board: whoever sleeps is woken by what it watches, and by nothing else.
#include "transports/shm/shm_readiness_flags.h"

#include <gtest/gtest.h>

#include <barrier>

#include "tests/support/participant.h"
#include "transports/shm/shm_host.h"

namespace fdl {
namespace {

using namespace fdl::test;

constexpr int kRanks = 3;

// Each rank has a board (beside collectives, with which it shares its bell), and a barrier between threads.
void run_readiness_flags(
    const std::function<void(int rank, ReadinessFlags& readiness_flags, Collectives& collectives)>& body) {
  Participant participant(kRanks);
  std::barrier<> all_there(kRanks);
  run_ranks(kRanks, [&](int rank) {
    const Membership membership = participant.membership(rank);
    ShmHost host = require(make_shm_host(membership));
    body(rank, *host.readiness_flags, *host.collectives);
    all_there.arrive_and_wait();  // who leaves wakes the others
  });
}

void wait_for_word(ReadinessFlags& readiness_flags, int rank, uint64_t word) {
  const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
  while (readiness_flags.word_of(rank) != word) {
    require(!deadline.passed(), "waited in vain for rank " + std::to_string(rank));
    readiness_flags.sleep_until_ready(deadline);
  }
}

bool is_rung(const ReadinessFlags& readiness_flags) {
  return wait_readable(readiness_flags.wake_fd(), Deadline::at_ns(0));
}

TEST(ShmReadinessFlags, ShowsEveryRankTheLastWordOfEachOther) {
  run_readiness_flags([](int rank, ReadinessFlags& readiness_flags, Collectives&) {
    readiness_flags.watch(~uint64_t{0});
    readiness_flags.publish(static_cast<uint64_t>(10 + rank));
    for (int other = 0; other < kRanks; ++other)
      wait_for_word(readiness_flags, other, static_cast<uint64_t>(10 + other));
  });
}

TEST(ShmReadinessFlags, LosesNoBellHoweverOftenTwoRanksSleepForEachOther) {
  run_readiness_flags([](int rank, ReadinessFlags& readiness_flags, Collectives&) {
    if (rank == 2) return;
    readiness_flags.watch(uint64_t{1} << (1 - rank));
    for (uint64_t turn = 1; turn <= 5000; ++turn) {
      if (rank == 0) readiness_flags.publish(turn);
      wait_for_word(readiness_flags, 1 - rank, turn);
      if (rank == 1) readiness_flags.publish(turn);
    }
  });
}

TEST(ShmReadinessFlags, RingsWhoWatchesAndWhoeverSleepsWhereItIsUrgent) {
  std::barrier<> step(kRanks);
  run_readiness_flags([&](int rank, ReadinessFlags& readiness_flags, Collectives&) {
    readiness_flags.watch(rank == 1 ? 1 : 0);
    if (rank > 0) {
      EXPECT_TRUE(readiness_flags.prepare_to_sleep());
    }
    step.arrive_and_wait();
    if (rank == 0) readiness_flags.publish(1);
    step.arrive_and_wait();
    if (rank > 0) {
      EXPECT_EQ(is_rung(readiness_flags), rank == 1);
    }
    step.arrive_and_wait();
    if (rank == 0) readiness_flags.publish(2 | ReadinessFlags::kUrgent);
    step.arrive_and_wait();
    if (rank == 2) {
      EXPECT_TRUE(is_rung(readiness_flags));
    }
    readiness_flags.finish_sleep();
    EXPECT_FALSE(is_rung(readiness_flags));
  });
}

TEST(ShmReadinessFlags, TellsOfAChangeBeforeASleepOnce) {
  std::barrier<> step(kRanks);
  run_readiness_flags([&](int rank, ReadinessFlags& readiness_flags, Collectives&) {
    readiness_flags.watch(1);
    if (rank == 0) readiness_flags.publish(9);
    step.arrive_and_wait();
    if (rank > 0) {
      EXPECT_FALSE(readiness_flags.prepare_to_sleep());
      readiness_flags.finish_sleep();
      EXPECT_TRUE(readiness_flags.prepare_to_sleep());
      readiness_flags.finish_sleep();
    }
  });
}

TEST(ShmReadinessFlags, WakesAlsoWhoSleepsInACollective) {
  run_readiness_flags([](int rank, ReadinessFlags& readiness_flags, Collectives& collectives) {
    const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
    readiness_flags.watch(rank == 2 ? 0 : uint64_t{1} << 2);
    Completion completion;
    CollectiveSpec spec;
    spec.collective = Collective::barrier;
    if (rank == 2) {
      readiness_flags.publish(5);
    } else {  // the barrier cannot end, for rank 2 is not there
      collectives.start(spec, {}, completion);
      while (readiness_flags.word_of(2) != 5) {
        require(!deadline.passed(), "waited in vain");
        collectives.progress();
        const bool quiet = collectives.prepare_to_sleep() && readiness_flags.prepare_to_sleep();
        if (quiet) wait_readable(readiness_flags.wake_fd(), deadline);
        collectives.finish_sleep();
        readiness_flags.finish_sleep();
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
