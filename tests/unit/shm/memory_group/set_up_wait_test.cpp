// Tests of the sleep in a set-up: rings, the ends of processes, deadlines, and several threads of one rank.
#include "transports/shm/memory_group/set_up_wait.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tests/support/descriptors.h"
#include "tests/support/ranks.h"
#include "transports/shm/shm_lives.h"

namespace fdl {
namespace {

using namespace fdl::test;

// A process that waits until it is killed.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ != 0) return;
    while (true) ::pause();
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void end() {
    if (std::exchange(is_dead_, true)) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  UniqueFd life() const { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))); }

 private:
  const pid_t pid_;
  bool is_dead_ = false;
};

class SetUpWaitTest : public testing::Test {
 protected:
  static constexpr int kRanks = 3;
  SetUpWaitTest() {
    std::vector<UniqueFd> lives(kRanks);
    for (std::size_t rank = 1; rank < lives.size(); ++rank) lives[rank] = children_[rank].life();
    lives_ = require(LivesWatch::make(std::move(lives)));
    doorbell_ = std::make_shared<Doorbell>(Doorbell{0, require(Event::make())});
    memory_ = static_cast<std::byte*>(::operator new[](size_, std::align_val_t{4096}));
    std::memset(memory_, 0, size_);
    arena_.emplace(Bytes(memory_, size_), kRanks);
    waits_.emplace(*arena_, 0, doorbell_, lives_);
  }
  ~SetUpWaitTest() override {
    waits_.reset();
    ::operator delete[](memory_, std::align_val_t{4096});
  }

  const std::size_t size_ = Arena::bytes_for(kRanks, Arena::kChunkBytes);
  std::array<Child, kRanks> children_;
  std::shared_ptr<const LivesWatch> lives_;
  std::shared_ptr<const Doorbell> doorbell_;
  std::byte* memory_ = nullptr;
  std::optional<Arena> arena_;
  std::optional<SetUpWaits> waits_;
};

TEST_F(SetUpWaitTest, IsAnnouncedToTheRanksThatRing) {
  EXPECT_FALSE(arena_->waits(0));
  {
    const auto one = require(waits_->begin());
    const auto two = require(waits_->begin());
    EXPECT_TRUE(arena_->waits(0));
  }
  EXPECT_FALSE(arena_->waits(0));
  EXPECT_FALSE(arena_->waits(1));
}

TEST_F(SetUpWaitTest, EndsAfterTheDeadline) {
  const auto wait = require(waits_->begin());
  const Deadline deadline = Deadline::after_seconds(0.05);
  wait->sleep(deadline);
  EXPECT_TRUE(deadline.passed());
}

// The communicators clear the doorbell, and not the set-ups: what has rung stays readable.
TEST_F(SetUpWaitTest, SleepsAgainThoughTheDoorbellStaysReadable) {
  const auto wait = require(waits_->begin());
  doorbell_->event.ring();
  wait->sleep(Deadline::after_seconds(30));
  const Deadline deadline = Deadline::after_seconds(0.05);
  wait->sleep(deadline);
  EXPECT_TRUE(deadline.passed());
}

// Each thread looks at its own condition: no thread takes the ring of another one.
TEST_F(SetUpWaitTest, EndsInEachThreadAfterARing) {
  for (int round = 1; round <= 200; ++round) {
    std::atomic<int> value{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        const auto wait = require(waits_->begin());
        const Deadline deadline = Deadline::after_seconds(30);
        while (value.load() == 0) {
          ASSERT_FALSE(deadline.passed()) << "a ring was lost";
          wait->sleep(deadline);
        }
      });
    }
    if (round % 2 == 0) std::this_thread::yield();
    value.store(1);
    doorbell_->event.ring();
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(SetUpWaitTest, EndsWithAProcessAndTellsItToLaterWaits) {
  {
    const auto wait = require(waits_->begin());
    children_[2].end();
    const Deadline deadline = Deadline::after_seconds(30);
    while (wait->ended() == 0 && !deadline.passed()) wait->sleep(deadline);
    EXPECT_EQ(wait->ended(), bit_of(2));
  }
  const auto again = require(waits_->begin());
  EXPECT_EQ(again->ended(), bit_of(2)) << "the set was kept, and reports each end once";
  children_[1].end();
  const Deadline deadline = Deadline::after_seconds(30);
  while (again->ended() == bit_of(2) && !deadline.passed()) again->sleep(deadline);
  EXPECT_EQ(again->ended(), bit_of(1) | bit_of(2));
}

TEST_F(SetUpWaitTest, KeepsOneSetForTheNextSetUps) {
  require(waits_->begin());
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 10; ++i) require(waits_->begin());
  EXPECT_EQ(open_descriptors(), before);
}

// The set that another one contains reports a second end too, though it is readable since the first.
TEST_F(SetUpWaitTest, OfALivenessSetThatIsNestedReportsEachEnd) {
  Poller poller = require(Poller::make());
  require(poller.add_edges(lives_->fd(), 7));
  std::array<Poller::Ready, 2> ready;
  for (const int rank : {1, 2}) {
    EXPECT_EQ(poller.wait(ready, Deadline::at_ns(0)), 0u);
    children_[static_cast<std::size_t>(rank)].end();
    EXPECT_EQ(poller.wait(ready, Deadline::after_seconds(30)), 1u);
  }
  EXPECT_EQ(lives_->ended(), bit_of(1) | bit_of(2));
}

TEST_F(SetUpWaitTest, OpensTheDescriptorsOfALivenessSetAgain) {
  EXPECT_TRUE(lives_->is_private());
  const auto another = require(lives_->another());
  children_[1].end();
  EXPECT_EQ(another->ended(), bit_of(1));
  EXPECT_FALSE(lives_->another().ok()) << "a process that has ended cannot be opened again";
}

TEST(LivesWatch, OfAPipeIsNotOfThisProcessAlone) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd kept(ends[1]);
  std::vector<UniqueFd> lives(2);
  lives[1] = UniqueFd(ends[0]);
  const auto watch = require(LivesWatch::make(std::move(lives)));
  EXPECT_FALSE(watch->is_private());
  EXPECT_FALSE(watch->another().ok());
  EXPECT_EQ(watch->ended(), 0u);
  kept.reset();
  EXPECT_EQ(watch->ended(), bit_of(1));
}

}  // namespace
}  // namespace fdl
