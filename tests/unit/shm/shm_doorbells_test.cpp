// Tests of doorbells: which communicators share them, and that none loses a ring because of another one.
#include "transports/shm/shm_doorbells.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "tests/support/descriptors.h"
#include "tests/support/participant.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {
namespace {

using namespace fdl::test;

TEST(Doorbells, AreSharedBeyondTheFirstOnesAndCloseWithTheLastUser) {
  const std::size_t before = open_descriptors();
  std::vector<std::shared_ptr<const Doorbell>> taken;
  std::set<uint64_t> ids;
  const auto take = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      taken.push_back(require(take_doorbell()));
      ids.insert(taken.back()->id);
    }
  };
  take(kDoorbellsOfOneCommunicator);
  EXPECT_EQ(ids.size(), kDoorbellsOfOneCommunicator);
  take(kDoorbellsOfOneCommunicator * (kCommunicatorsOfADoorbell - 1));
  EXPECT_EQ(ids.size(), kDoorbellsOfOneCommunicator);
  take(1);
  EXPECT_EQ(ids.size(), kDoorbellsOfOneCommunicator + 1);
  EXPECT_EQ(open_descriptors(), before + ids.size());
  taken.clear();
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Doorbells, ThatAreReceivedTwiceAreKeptOnce) {
  const std::size_t before = open_descriptors();
  const Event other = require(Event::make());
  const auto first = keep_doorbell(7, UniqueFd(::dup(other.fd())));
  const auto second = keep_doorbell(7, UniqueFd(::dup(other.fd())));
  EXPECT_EQ(first, second);
  EXPECT_NE(keep_doorbell(8, UniqueFd(::dup(other.fd()))), first);
  EXPECT_EQ(open_descriptors(), before + 2);
}

TEST(Doorbells, OfOtherProcessesAreNotTakenByAForkedChild) {
  std::vector<std::shared_ptr<const Doorbell>> taken;
  for (std::size_t i = 0; i < kDoorbellsOfOneCommunicator; ++i) taken.push_back(require(take_doorbell()));
  const pid_t child = ::fork();
  if (child == 0) {
    const auto own = require(take_doorbell());
    const bool is_new = std::ranges::none_of(taken, [&](const auto& one) { return one->id == own->id; });
    ::_exit(is_new ? 0 : 1);
  }
  int outcome = 0;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  EXPECT_EQ(outcome, 0);
}

// Two ranks in many communicators, so that most share their doorbells.
class ManyCommunicators : public testing::Test {
 protected:
  static constexpr int kCount = 20;
  using OfRank = std::vector<std::unique_ptr<Neighbours>>;

  ManyCommunicators() {
    run_ranks(2, [&](int rank) {
      for (int number = 0; number < kCount; ++number) {
        const std::string purpose = "many " + std::to_string(number);
        of(rank).push_back(
            require(Neighbours::make(require(share_segment(participant_.membership(rank), {0, 1}, purpose, 1_MiB)))));
      }
    });
  }
  OfRank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  Participant participant_{2};
  std::array<OfRank, 2> ranks_;
};

TEST_F(ManyCommunicators, EachSeesItsOwnRingAndSleepsOnAfterThoseOfOthers) {
  std::atomic<int> value[kCount]{};
  constexpr int kRounds = 50;
  std::vector<std::thread> sleepers;
  for (int number = 0; number < kCount; ++number) {
    sleepers.emplace_back([&, number] {
      Neighbours& mine = *of(1)[static_cast<std::size_t>(number)];
      for (int round = 1; round <= kRounds; ++round) {
        while (value[number].load() < round) {
          mine.announce_sleep(bit_of(0));
          if (value[number].load() < round) {
            ASSERT_TRUE(wait_readable(mine.wake_fd(), Deadline::after_seconds(30))) << "a ring was lost";
          }
          mine.end_sleep();
        }
      }
    });
  }
  for (int round = 1; round <= kRounds; ++round) {
    for (int number = 0; number < kCount; ++number) {
      value[number].store(round);
      of(0)[static_cast<std::size_t>(number)]->wake_waiters();
    }
  }
  for (std::thread& sleeper : sleepers) sleeper.join();
}

// A ring for another communicator may have come between two sleeps; each ends at most one of them too early.
TEST_F(ManyCommunicators, DoNotStayAwakeAfterARing) {
  for (const auto& waiting : of(1)) waiting->announce_sleep(bit_of(0));
  for (const auto& ringing : of(0)) ringing->wake_waiters();
  for (const auto& woken : of(1)) {
    EXPECT_TRUE(wait_readable(woken->wake_fd(), Deadline::after_seconds(30)));
    woken->end_sleep();
  }
  for (const auto& quiet : of(1)) {
    quiet->announce_sleep(bit_of(0));
    EXPECT_FALSE(wait_readable(quiet->wake_fd(), Deadline::at_ns(0)));
    EXPECT_FALSE(quiet->cancel_sleep());
  }
}

}  // namespace
}  // namespace fdl
