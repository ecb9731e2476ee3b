// Tests of set-ups in the arena in which a member fails, leaves, never comes or is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <latch>
#include <limits>
#include <random>
#include <thread>

#include "tests/support/processes/processes.h"
#include "tests/support/sanitized.h"
#include "tests/unit/shm/memory_group/group_of_ranks.h"

namespace fdl {
namespace {

using namespace fdl::test;
using testing::HasSubstr;
using testing::Not;

const std::vector<int> kAll{0, 1, 2};
Deadline long_enough() { return Deadline::after_seconds(kTimeoutSeconds); }

TEST(MemoryGroupLosses, NameTheMembersThatDoNotCome) {
  GroupOfRanks ranks(3);
  ranks.meet();
  run_ranks(2, [&](int rank) {
    // The deadline of one of them passes first, and closes the set-up for both.
    const Status failed = ranks.make(rank, kAll, "not all", Deadline::after_seconds(1 + 0.1 * rank)).status();
    EXPECT_EQ(failed.code(), Code::timeout);
    EXPECT_THAT(failed.text(), HasSubstr("shm: rank 12 (host-c) did not join the shared memory"));
    EXPECT_EQ(failed.error().culprit_rank, 12);
  });
  EXPECT_TRUE(ranks.all_are_free());
}

// Whether these members have come to the communicator with the key, as `rank` sees it.
bool have_come(GroupOfRanks& ranks, int rank, const Arena::Key& key, RankMask members) {
  const Arena& arena = ranks.of(rank)->arena();
  const auto record = arena.find(0, key);
  return record && arena.with(*record, members, Arena::kCame) == members;
}

void wait_until_come(GroupOfRanks& ranks, int rank, const Arena::Key& key, RankMask members) {
  const Deadline deadline = long_enough();
  while (!have_come(ranks, rank, key, members)) {
    ASSERT_FALSE(deadline.passed()) << "the others have not come";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Every set of members that do not come, in groups of several sizes: all that come have one text, which names no other.
TEST(MemoryGroupLosses, NameTheSameLateMembersOnAll) {
  for (const int size : {2, 3, 5}) {
    GroupOfRanks ranks(size);
    ranks.meet();
    std::vector<int> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(rank);
    for (RankMask late = 1; late < all_ranks(size); ++late) {
      // Without the first member there is no record, so no rank knows of the others.
      const bool has_record = (late & 1) == 0;
      const RankMask named = has_record ? late : 1;
      const RankMask come = all_ranks(size) & ~late;
      const int last = 63 - std::countl_zero(come);  // whose time passes first, once the others have come
      const Arena::Key key{late, 1};
      const std::string id = "without " + std::to_string(late);
      std::vector<Status> failed(static_cast<std::size_t>(size));
      run_ranks(size, [&](int rank) {
        if ((late & bit_of(rank)) != 0) return;
        auto place = require(GroupPlace::make(
            ranks.of(rank),
            {.id = id, .members = ranks.membership(rank, all, id).members, .group_of = all, .key = key, .bytes = 1}));
        if (has_record && rank == last && rank > 0) wait_until_come(ranks, rank, key, come & ~bit_of(rank));
        const bool is_short = !has_record || rank == last;
        failed[static_cast<std::size_t>(rank)] = place->meet(is_short ? Deadline::after_seconds(0.01) : long_enough());
      });
      std::string names;
      for (const int rank : each_of(named)) {
        names += (names.empty() ? "" : ", ") + name_of(ranks.membership(rank, all, id).me());
      }
      for (const int rank : each_of(come)) {
        const Status& status = failed[static_cast<std::size_t>(rank)];
        ASSERT_EQ(status.code(), Code::timeout) << id << " of " << size << ", rank " << rank << ": " << status.text();
        EXPECT_THAT(status.text(), HasSubstr("shm: " + names + " did not join the shared memory"));
        EXPECT_EQ(status.error().culprit_rank, 10 + first_of(named));
      }
      ASSERT_TRUE(ranks.all_are_free());
    }
  }
}

// The late member comes while the others still hold the record: it is the one that was late for them too.
TEST(MemoryGroupLosses, TellAMemberThatComesLateThatItWasLate) {
  GroupOfRanks ranks(3);
  ranks.meet();
  std::latch has_failed(1), has_come(1);
  run_ranks(3, [&](int rank) {
    auto place = require(GroupPlace::make(ranks.of(rank), {.id = "late",
                                                           .members = ranks.membership(rank, kAll, "late").members,
                                                           .group_of = kAll,
                                                           .key = {1, 2},
                                                           .bytes = 1}));
    if (rank == 2) has_failed.wait();
    Status failed = place->meet(rank == 0 ? Deadline::after_seconds(1) : long_enough());
    if (rank == 0) has_failed.count_down();
    // All have come in the end, but the set-up is closed.
    if (rank > 0 && failed.ok()) failed = place->confirm(long_enough());
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.code(), Code::timeout);
    EXPECT_EQ(failed.error().culprit_rank, 12);
    EXPECT_THAT(failed.text(), HasSubstr("shm: rank 12 (host-c) did not join"));
    if (rank == 2) has_come.count_down();
    if (rank == 0) has_come.wait();
  });
  EXPECT_TRUE(ranks.all_are_free());
}

// A member that ends because of news has not waited for the late ones: it is the one that has ended the set-up.
TEST(MemoryGroupLosses, NameNoLateMemberWhereAnInterruptHasEndedTheSetUp) {
  GroupOfRanks ranks(3);
  ranks.meet();
  Event news = require(Event::make());
  Interrupt interrupt{.moment_ns = std::numeric_limits<int64_t>::max(), .fd = news.fd()};
  const Arena::Key key{1, 2};
  run_ranks(3, [&](int rank) {
    if (rank == 2) {
      wait_until_come(ranks, rank, key, 3);
      interrupt.moment_ns = now_ns();
      news.ring();
      return;
    }
    auto place = require(GroupPlace::make(ranks.of(rank), {.id = "interrupted",
                                                           .members = ranks.membership(rank, kAll, "").members,
                                                           .group_of = kAll,
                                                           .key = key,
                                                           .bytes = 1}));
    const Status failed = place->meet(rank == 0 ? long_enough().interrupted_by(interrupt) : long_enough());
    EXPECT_THAT(failed.text(), Not(HasSubstr("rank 12")));
    if (rank == 1) {
      EXPECT_EQ(failed.code(), Code::transport);
      EXPECT_EQ(failed.error().culprit_rank, 10);
    }
  });
  EXPECT_TRUE(ranks.all_are_free());
}

TEST(MemoryGroupLosses, NameTheFirstMemberThatDoesNotAnnounce) {
  GroupOfRanks ranks(3);
  ranks.meet();
  run_ranks(2, [&](int rank) {
    const Status failed = ranks.make(rank + 1, kAll, "no first", Deadline::after_seconds(0.2)).status();
    EXPECT_EQ(failed.code(), Code::timeout);
    EXPECT_THAT(failed.text(), HasSubstr("rank 10 (host-a) did not join"));
    EXPECT_EQ(failed.error().culprit_rank, 10);
  });
}

// A member that comes after the others have given up must not have the communicator, nor write to its memory.
TEST(MemoryGroupLosses, ShutOutAMemberThatComesLate) {
  GroupOfRanks ranks(3);
  ranks.meet();
  run_ranks(2, [&](int rank) { EXPECT_FALSE(ranks.make(rank, kAll, "late", Deadline::after_seconds(0.1)).ok()); });
  EXPECT_TRUE(ranks.all_are_free());
  EXPECT_EQ(ranks.make(2, kAll, "late", Deadline::after_seconds(0.1)).status().code(), Code::timeout);
  EXPECT_TRUE(ranks.all_are_free());
}

TEST(MemoryGroupLosses, EndASetUpThatAMemberLeaves) {
  GroupOfRanks ranks(3);
  ranks.meet();
  for (int leaver = 0; leaver < 3; ++leaver) {
    run_ranks(3, [&](int rank) {
      auto host = require(ranks.join(rank, kAll, "left by " + std::to_string(leaver)));
      if (rank == leaver) return;
      const int64_t began = now_ns();
      const Status failed = host.confirm(long_enough());
      EXPECT_EQ(failed.code(), Code::transport);
      EXPECT_EQ(failed.error().culprit_rank, 10 + leaver);
      EXPECT_LT(now_ns() - began, seconds_to_ns(20)) << "it waited for the deadline";
    });
    EXPECT_TRUE(ranks.all_are_free());
  }
}

TEST(MemoryGroupLosses, NameTheMemberThatDoesNotConfirm) {
  GroupOfRanks ranks(3);
  ranks.meet();
  std::latch failed(2);
  run_ranks(3, [&](int rank) {
    auto host = require(ranks.join(rank, kAll, "unconfirmed"));
    if (rank == 1) failed.wait();  // the set-up is closed then
    const Status late = host.confirm(Deadline::after_seconds(rank == 1 ? 0 : 0.2));
    EXPECT_EQ(late.code(), Code::timeout);
    EXPECT_THAT(late.text(), HasSubstr("rank 11 (host-b) has not finished its part"));
    EXPECT_EQ(late.error().culprit_rank, 11);
    if (rank != 1) failed.count_down();
  });
  EXPECT_TRUE(ranks.all_are_free());
}

// All or none: the deadlines pass while members confirm.
TEST(MemoryGroupLosses, GiveTheCommunicatorToAllOrToNone) {
  GroupOfRanks ranks(3);
  ranks.meet();
  std::mt19937 random(7);
  int made = 0, closed = 0;
  const int rounds = kThreadSanitized ? 300 : 1500;
  for (int round = 0; round < rounds; ++round) {
    std::array<int, 3> limit_us{};
    for (int& one : limit_us) one = static_cast<int>(random() % 250);
    std::atomic<int> have{0};
    std::latch come(3);
    run_ranks(3, [&](int rank) {
      auto host = require(ranks.join(rank, kAll, std::to_string(round)));
      come.arrive_and_wait();
      const Deadline deadline = Deadline::after_ns(limit_us[static_cast<std::size_t>(rank)] * 1000);
      if (host.confirm(deadline).ok()) ++have;
    });
    ASSERT_TRUE(have == 0 || have == 3) << have << " members have it";
    ++(have == 3 ? made : closed);
    ASSERT_TRUE(ranks.all_are_free());
  }
  EXPECT_GT(made, 0);
  EXPECT_GT(closed, 0);
}

// Any member gives up at a random moment of the whole set-up.
TEST(MemoryGroupLosses, LeaveNothingWhenMembersGiveUpAtAnyMoment) {
  GroupOfRanks ranks(3);
  ranks.meet();
  std::mt19937 random(11);
  for (int round = 0; round < (kThreadSanitized ? 150 : 600); ++round) {
    const int quitter = static_cast<int>(random() % 3);
    const int64_t limit_ns = static_cast<int64_t>(random() % 300'000);
    const bool never_comes = random() % 4 == 0;
    std::atomic<int> have{0};
    run_ranks(3, [&](int rank) {
      if (rank == quitter && never_comes) return;
      // Without a coordinator the others learn only from their deadline that a member has not come.
      const Deadline deadline = rank == quitter ? Deadline::after_ns(limit_ns) : Deadline::after_seconds(0.01);
      if (ranks.make(rank, kAll, std::to_string(round), deadline).ok()) ++have;
    });
    ASSERT_TRUE(have == 0 || have == 3) << have;
    ASSERT_TRUE(ranks.all_are_free());
  }
}

// ---- Processes that are killed ----

// Rank 2 is killed after a random time, while all make communicators. The others must end, and go on without it.
TEST(MemoryGroupLosses, EndWithTheErrorOfAMemberThatIsKilled) {
  std::mt19937 random(13);
  for (int round = 0; round < (kThreadSanitized ? 8 : 25); ++round) {
    SCOPED_TRACE(round);
    const auto delay = std::chrono::microseconds(random() % 20'000);
    GroupOfRanks ranks(3);
    run_processes(3, [&](int rank) {
      ranks.meet(rank);
      if (rank == 2) {
        std::thread([delay] {
          std::this_thread::sleep_for(delay);
          ::kill(::getpid(), SIGKILL);
        }).detach();
      }
      Status failed;
      std::vector<ShmHost> kept;
      for (int i = 0; failed.ok(); ++i) {
        auto host = ranks.make(rank, kAll, std::to_string(i), Deadline::after_seconds(30));
        failed = host.status();
        if (!host.ok()) break;
        std::vector<float> values(700, 1);
        failed = sum(*host, values);
        kept.push_back(host.take());
        if (kept.size() > 3) kept.clear();
      }
      EXPECT_TRUE(failed.code() == Code::peer_lost || failed.code() == Code::transport) << failed.text();
      kept.clear();
      // The first member frees what a killed member kept when it needs room.
      for (int i = 0; i < 5; ++i) {
        ShmHost host = require(ranks.make(rank, {0, 1}, "two " + std::to_string(i)));
        check_sums(host, rank, {0, 1}, 2);
      }
    });
  }
}

// A member is killed after it has left no trace but its word: those that leave later free the range.
TEST(MemoryGroupLosses, FreeTheRangeOfAMemberThatWasKilled) {
  GroupOfRanks ranks(2);
  run_processes(2, [&](int rank) {
    ranks.meet(rank);
    const std::size_t all = ranks.of(rank)->arena().chunk_count();
    ShmHost host = require(ranks.make(rank, {0, 1}, "killed"));
    check_sums(host, rank, {0, 1}, 1);
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    std::vector<float> values(10, 1);
    EXPECT_EQ(sum(host, values).code(), Code::peer_lost);
    EXPECT_LT(ranks.of(0)->arena().free_chunks(), all);
    host = ShmHost();
    EXPECT_EQ(ranks.of(0)->arena().free_chunks(), all);
  });
}

// A killed member that has confirmed does not keep the others from an outcome.
TEST(MemoryGroupLosses, EndConfirmationsThatAKilledMemberDoesNotGive) {
  GroupOfRanks ranks(3);
  run_processes(3, [&](int rank) {
    ranks.meet(rank);
    auto host = require(ranks.join(rank, kAll, "killed before it confirms"));
    if (rank == 2) ::kill(::getpid(), SIGKILL);
    const Status failed = host.confirm(Deadline::after_seconds(30));
    EXPECT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().culprit_rank >= 10, true);
  });
}

}  // namespace
}  // namespace fdl
