// Tests of Neighbours::activity(), which tells a spinning rank on which processors the other ranks run, and how long
// the ranks that it has woken need to wake up.
#include "transports/shm/shm_neighbours.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <latch>

#include "tests/support/participant.h"

namespace fdl {
namespace {

using namespace fdl::test;

std::unique_ptr<Neighbours> join(Participant& participant, int rank) {
  return require(Neighbours::make(require(share_segment(participant.membership(rank), {0, 1}, "activity", 1_MiB))));
}

TEST(ShmNeighbours, KnowWhoRunsOnTheSameProcessor) {
  const std::vector<int> processors = allowed_processors();
  ASSERT_GE(processors.size(), 2u) << "this test needs two processors";
  Participant participant(2);
  std::latch joined(2), together(2), apart(2);
  run_ranks(2, [&](int rank) {
    const auto neighbours = join(participant, rank);
    move_to(processors[0]);
    if (rank == 0) {
      EXPECT_FALSE(neighbours->activity(neighbours->others()).on_this_processor) << "the other has published nothing";
    }
    joined.arrive_and_wait();
    neighbours->activity(neighbours->others());
    together.arrive_and_wait();
    EXPECT_TRUE(neighbours->activity(neighbours->others()).on_this_processor);
    EXPECT_EQ(neighbours->activity(neighbours->others()).should_leave, rank == 1) << "the lowest rank stays";
    EXPECT_FALSE(neighbours->activity(0).on_this_processor) << "of no rank";
    EXPECT_FALSE(neighbours->activity(all_ranks(2) & ~neighbours->others()).on_this_processor) << "itself";
    if (rank == 1) move_to(processors[1]);
    apart.arrive_and_wait();
    // The slower rank of the two has certainly seen the other's new processor.
    neighbours->activity(neighbours->others());
    if (rank == 1) {
      EXPECT_FALSE(neighbours->activity(neighbours->others()).on_this_processor);
    }
  });
}

TEST(ShmNeighbours, MeasureHowLongAWokenRankNeeds) {
  Participant participant(2);
  std::atomic<int> asleep = 0, awake = 0, checked = 0;  // rounds
  run_ranks(2, [&](int rank) {
    const auto neighbours = join(participant, rank);
    for (int round = 1; round <= 3; ++round) {
      if (rank == 1) {
        neighbours->announce_sleep(bit_of(0));
        asleep.store(round);
        EXPECT_TRUE(wait_readable(neighbours->wake_fd(), Deadline::after_seconds(30)));
        neighbours->end_sleep();
        awake.store(round);
        while (checked.load() < round) ::sched_yield();
        continue;
      }
      while (asleep.load() < round) ::sched_yield();
      EXPECT_EQ(neighbours->activity(bit_of(1)).wake_up_ns, 0) << "this rank has woken none";
      neighbours->wake_waiters();
      while (awake.load() < round) ::sched_yield();
      EXPECT_GT(neighbours->activity(bit_of(1)).wake_up_ns, 0);
      EXPECT_EQ(neighbours->activity(bit_of(1)).wake_up_ns, 0) << "told once";
      neighbours->wake_waiters();
      EXPECT_EQ(neighbours->activity(bit_of(1)).wake_up_ns, 0) << "it sleeps no more, so it was not rung";
      checked.store(round);
    }
  });
}

}  // namespace
}  // namespace fdl
