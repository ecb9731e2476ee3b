// Tests of communicators that are made in the arena of a memory group: which members, from which threads, how many, and
// what is left of them.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <latch>
#include <random>

#include "tests/support/descriptors.h"
#include "tests/support/sanitized.h"
#include "tests/unit/shm/memory_group/group_of_ranks.h"

namespace fdl {
namespace {

using namespace fdl::test;

TEST(MemoryGroup, MakesCommunicatorsThatLeaveNothing) {
  GroupOfRanks ranks(3);
  ranks.meet();
  run_ranks(3, [&](int rank) { require(ranks.make(rank, {0, 1, 2}, "first")); });
  const std::size_t before = open_descriptors();
  EXPECT_TRUE(ranks.all_are_free());
  for (int round = 0; round < 3; ++round) {
    std::latch made(3), counted(3);
    run_ranks(3, [&](int rank) {
      std::vector<ShmHost> hosts;
      for (int i = 0; i < 8; ++i) {
        const std::string id = std::to_string(round) + "/" + std::to_string(i);
        hosts.push_back(require(ranks.make(rank, {0, 1, 2}, id)));
        check_sums(hosts.back(), rank, {0, 1, 2}, i + 1);
      }
      made.arrive_and_wait();
      if (rank == 0) {
        EXPECT_EQ(open_descriptors(), before + 3 * 8) << "a set for each communicator of each rank";
        EXPECT_FALSE(ranks.all_are_free());
      }
      counted.arrive_and_wait();
    });
    EXPECT_TRUE(ranks.all_are_free());
    EXPECT_EQ(open_descriptors(), before);
  }
}

TEST(MemoryGroup, ReturnsThePagesOfACommunicator) {
  GroupOfRanks ranks(2);
  ranks.meet();
  const auto blocks = [&] {
    struct stat file {};
    require(::fstat(ranks.of(0)->segment_fd(), &file) == 0, "fstat");
    return file.st_blocks;
  };
  run_ranks(2, [&](int rank) { require(ranks.make(rank, {0, 1}, "first")); });
  const auto before = blocks();
  std::latch used(2), looked(2);
  run_ranks(2, [&](int rank) {
    ShmHost host = require(ranks.make(rank, {0, 1}, "second"));
    check_sums(host, rank, {0, 1}, 1);
    used.arrive_and_wait();
    if (rank == 0) {
      EXPECT_GT(blocks(), before);
    }
    looked.arrive_and_wait();
  });
  EXPECT_EQ(blocks(), before);
}

// The plan is the same on all ranks: each communicator belongs to one of the two threads, which make theirs in order.
TEST(MemoryGroup, MakesCommunicatorsOfRandomMembersFromTwoThreadsOfFiveRanks) {
  constexpr int kRanks = 5;
  const int count = kThreadSanitized ? 50 : 100;
  for (const unsigned seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    GroupOfRanks ranks(kRanks);
    ranks.meet();
    std::vector<std::vector<int>> plan;
    std::mt19937 random(seed);
    for (int i = 0; i < count; ++i) {
      std::vector<int> members;
      while (members.size() < 2) {
        members.clear();
        for (int rank = 0; rank < kRanks; ++rank) {
          if (random() % 2 == 0) members.push_back(rank);
        }
      }
      plan.push_back(members);
    }
    run_ranks(2 * kRanks, [&](int number) {
      const int rank = number / 2;
      std::vector<ShmHost> kept;
      for (int i = number % 2; i < count; i += 2) {
        const auto& members = plan[static_cast<std::size_t>(i)];
        if (std::ranges::find(members, rank) == members.end()) continue;
        ShmHost host = require(ranks.make(rank, members, std::to_string(i)));
        check_sums(host, rank, members, i + 1);
        if (i % 3 == 0) kept.push_back(std::move(host));
        if (kept.size() > 5) kept.erase(kept.begin());
      }
    });
    EXPECT_TRUE(ranks.all_are_free());
  }
}

// The record is found by the identity of the communicator: the first member may come last or first, in any order.
TEST(MemoryGroup, MakesSeveralCommunicatorsAtOnceInAnyOrder) {
  constexpr int kAtOnce = 4;
  GroupOfRanks ranks(3);
  ranks.meet();
  for (int round = 0; round < 20; ++round) {
    run_ranks(3 * kAtOnce, [&](int number) {
      const int rank = number / kAtOnce;
      const std::string id = std::to_string(round) + "/" + std::to_string(number % kAtOnce);
      if ((number + round) % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      ShmHost host = require(ranks.make(rank, {0, 1, 2}, id));
      check_sums(host, rank, {0, 1, 2}, number % kAtOnce + 1);
    });
  }
  EXPECT_TRUE(ranks.all_are_free());
}

TEST(MemoryGroup, TakesMembersInAnyOrder) {
  GroupOfRanks ranks(3);
  ranks.meet();
  run_ranks(3, [&](int rank) {
    const std::vector<int> members{2, 0, 1};
    ShmHost host = require(ranks.make(rank, members, "turned"));
    check_sums(host, rank, members, 2);
  });
}

// epoll refuses a doorbell or a liveness set to which too many nested sets lead. Here are as many as in a program: a
// set of the communicator, and one of the thread that drives.
class Nested {
 public:
  Result<ShmHost*> add(ShmHost host) {
    FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
    FDL_RETURN_IF_ERROR(poller.add(host.transport->wake_fd(), 0));
    FDL_RETURN_IF_ERROR(progress_.add(poller.fd(), 0));
    pollers_.push_back(std::move(poller));
    hosts_.push_back(std::make_unique<ShmHost>(std::move(host)));
    return hosts_.back().get();
  }

 private:
  Poller progress_ = require(Poller::make());
  std::vector<Poller> pollers_;
  std::vector<std::unique_ptr<ShmHost>> hosts_;
};

TEST(MemoryGroup, PassesCommunicatorsBeyondItsDoorbellsToSockets) {
  raise_descriptor_limit();
  GroupOfRanks ranks(2);
  ranks.meet();
  constexpr int kInMemory = doorbells_of(2) * kCommunicatorsOfAGroupDoorbell;
  std::atomic<int> over_sockets{0};
  run_ranks(2, [&](int rank) {
    Nested nested;
    for (int i = 0; i < kInMemory + 5; ++i) {
      const std::vector<int> members{0, 1};
      auto host = require(ranks.join(rank, members, std::to_string(i)));
      EXPECT_EQ(static_cast<bool>(host.confirm), i < kInMemory) << i;
      if (!host.confirm) ++over_sockets;
      if (host.confirm) require(std::exchange(host.confirm, nullptr)(Deadline::after_seconds(kTimeoutSeconds)));
      ShmHost* added = require(nested.add(std::move(host)));
      if (i % 20 == 0 || i >= kInMemory) check_sums(*added, rank, members, 3);
    }
  });
  EXPECT_EQ(over_sockets, 2 * 5);
  EXPECT_TRUE(ranks.all_are_free());
  run_ranks(2, [&](int rank) {
    EXPECT_TRUE(static_cast<bool>(require(ranks.join(rank, {0, 1}, "after")).confirm)) << "doorbells are free again";
  });
}

// Rank 2 has no doorbell left, and the other two have: all go over sockets, whichever announces.
TEST(MemoryGroup, GoesOverSocketsIfOneMemberHasNoDoorbell) {
  raise_descriptor_limit();
  GroupOfRanks ranks(3);
  ranks.meet();
  constexpr int kInMemory = doorbells_of(3) * kCommunicatorsOfAGroupDoorbell;
  std::latch full(3), done(3);
  run_ranks(3, [&](int rank) {
    std::vector<ShmHost> kept;
    for (int i = 0; i < kInMemory && rank > 0; ++i) {
      kept.push_back(require(ranks.make(rank, {1, 2}, std::to_string(i))));
    }
    if (rank == 1) kept.clear();
    full.arrive_and_wait();
    const std::vector<int> all{0, 1, 2};
    ShmHost host = require(ranks.join(rank, all, "last member"));
    EXPECT_FALSE(host.confirm);
    check_sums(host, rank, all, 1);
    const std::vector<int> turned{2, 1, 0};
    ShmHost second = require(ranks.join(rank, turned, "first member"));
    EXPECT_FALSE(second.confirm);
    check_sums(second, rank, turned, 1);
    if (rank < 2) {
      EXPECT_TRUE(static_cast<bool>(require(ranks.join(rank, {0, 1}, "others")).confirm));
    }
    done.arrive_and_wait();
  });
  EXPECT_TRUE(ranks.all_are_free());
}

TEST(MemoryGroup, LeavesCommunicatorsWithOtherRanksToSockets) {
  GroupOfRanks ranks(3);
  // A group of ranks 0 and 1 alone.
  run_ranks(2, [&](int rank) {
    Membership membership = ranks.participant().membership(rank);
    membership.members.edit().pop_back();
    ranks.of(rank) = require(meet_memory_group(membership));
  });
  run_ranks(3, [&](int rank) {
    ShmHost host = require(ranks.join(rank, {0, 1, 2}, "of all"));
    EXPECT_FALSE(host.confirm);
    check_sums(host, rank, {0, 1, 2}, 1);
    if (rank < 2) {
      EXPECT_TRUE(static_cast<bool>(require(ranks.join(rank, {0, 1}, "of two")).confirm));
    }
  });
}

TEST(MemoryGroup, OfOneRankIsNone) {
  GroupOfRanks ranks(1);
  ranks.meet(0);
  EXPECT_EQ(ranks.of(0), nullptr);
}

// The child ends with the objects of its parent, and must not end them for the others.
TEST(MemoryGroup, IsLeftAloneByAForkedChild) {
  GroupOfRanks ranks(2);
  ranks.meet();
  std::array<std::optional<ShmHost>, 2> hosts;
  run_ranks(2, [&](int rank) { hosts[static_cast<std::size_t>(rank)] = require(ranks.make(rank, {0, 1}, "forked")); });
  const pid_t child = ::fork();
  if (child == 0) {
    for (auto& host : hosts) host.reset();
    ranks.of(0).reset();
    ranks.of(1).reset();
    ::_exit(0);
  }
  int outcome = 1;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  EXPECT_EQ(outcome, 0);
  EXPECT_FALSE(ranks.all_are_free());
  run_ranks(2, [&](int rank) { check_sums(*hosts[static_cast<std::size_t>(rank)], rank, {0, 1}, 4); });
  for (auto& host : hosts) host.reset();
  EXPECT_TRUE(ranks.all_are_free());
}

TEST(MemoryGroup, RefusesARankWithAnotherKey) {
  Participant participant(2);
  run_ranks(2, [&](int rank) {
    Membership membership = participant.membership(rank, Deadline::after_seconds(0.5));
    if (rank == 1) membership.job_key = "another key that is long enough";
    EXPECT_FALSE(meet_memory_group(membership).ok());
  });
}

}  // namespace
}  // namespace fdl
