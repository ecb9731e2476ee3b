// These tests check that a sleeping rank is woken by the readiness flags that it watches, and by no others.
#include "transports/shm/shm_readiness_flags.h"

#include <gtest/gtest.h>

#include <barrier>

#include "tests/support/participant.h"
#include "transports/shm/shm_host.h"

namespace fdl {
namespace {

using namespace fdl::test;

constexpr int kRanks = 3;

// Runs each rank with its readiness flags, with collectives that share the flags' doorbell, and with a barrier between
// the threads.
void run_readiness_flags(
    const std::function<void(int rank, ReadinessFlags& readiness_flags, Collectives& collectives)>& body) {
  Participant participant(kRanks);
  std::barrier<> all_done(kRanks);
  run_ranks(kRanks, [&](int rank) {
    const Membership membership = participant.membership(rank);
    ShmHost host = require(make_shm_host(membership));
    body(rank, *host.readiness_flags, *host.collectives);
    all_done.arrive_and_wait();  // a rank that leaves wakes the others
  });
}

void wait_for_word(ReadinessFlags& readiness_flags, int rank, uint64_t word) {
  const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
  while (readiness_flags.word_of(rank) != word) {
    require(!deadline.passed(), "timed out waiting for rank " + std::to_string(rank));
    readiness_flags.sleep_until_ready(deadline);
  }
}

bool is_rung(const ReadinessFlags& readiness_flags) {
  return wait_readable(readiness_flags.wake_fd(), Deadline::at_ns(0));
}

TEST(ShmReadinessFlags, ShowEachRankTheLastWordOfAllOthers) {
  run_readiness_flags([](int rank, ReadinessFlags& readiness_flags, Collectives&) {
    readiness_flags.watch(~uint64_t{0});
    readiness_flags.publish(static_cast<uint64_t>(10 + rank));
    for (int other = 0; other < kRanks; ++other)
      wait_for_word(readiness_flags, other, static_cast<uint64_t>(10 + other));
  });
}

TEST(ShmReadinessFlags, LoseNoWakeUpBetweenTwoRanksThatSleepInTurn) {
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

TEST(ShmReadinessFlags, WakeWatchersAndForUrgentWordsEverySleeper) {
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

TEST(ShmReadinessFlags, ReportAChangeBeforeASleepOnce) {
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

TEST(ShmReadinessFlags, WakeARankThatSleepsInACollective) {
  run_readiness_flags([](int rank, ReadinessFlags& readiness_flags, Collectives& collectives) {
    const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
    readiness_flags.watch(rank == 2 ? 0 : uint64_t{1} << 2);
    Completion completion;
    CollectiveSpec spec;
    spec.collective = Collective::barrier;
    if (rank == 2) {
      readiness_flags.publish(5);
    } else {  // the barrier cannot end before rank 2 starts it
      collectives.start(spec, {}, completion);
      while (readiness_flags.word_of(2) != 5) {
        require(!deadline.passed(), "timed out waiting");
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
