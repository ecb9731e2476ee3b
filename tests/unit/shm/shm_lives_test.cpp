// Tests of liveness descriptors that the communicators of a process share.
#include "transports/shm/shm_lives.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "system/poller.h"
#include "tests/support/descriptors.h"

namespace fdl {
namespace {

using test::open_descriptors;

// A process that waits until it is killed.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ != 0) return;
    while (true) ::pause();
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  UniqueFd life() const { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))); }
  void kill() {
    if (std::exchange(is_dead_, true)) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
  bool is_dead_ = false;
};

bool has_ended(const std::shared_ptr<const UniqueFd>& life) { return wait_readable(life->get(), Deadline::at_ns(0)); }

TEST(SharedLives, KeepOneDescriptorOfAProcess) {
  Child child;
  const std::size_t before = open_descriptors();
  SharedLives one;
  SharedLives other;
  const auto first = one.share(child.life());
  const auto second = other.share(child.life());
  EXPECT_EQ(first, second);
  EXPECT_EQ(open_descriptors(), before + 1);
  EXPECT_FALSE(has_ended(first));
  child.kill();
  EXPECT_TRUE(has_ended(second));
}

TEST(SharedLives, AreClosedWithTheLastCommunicator) {
  const Child child;
  const std::size_t before = open_descriptors();
  {
    SharedLives lives;
    auto first = lives.share(child.life());
    const auto second = SharedLives().share(child.life());
    first.reset();
    EXPECT_EQ(open_descriptors(), before + 1);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(SharedLives, TellProcessesApart) {
  Child one;
  const Child other;
  SharedLives lives;
  const auto first = lives.share(one.life());
  const auto second = lives.share(other.life());
  EXPECT_NE(first, second);
  one.kill();
  EXPECT_TRUE(has_ended(first));
  EXPECT_FALSE(has_ended(second));
}

// The most sets that are nested around a descriptor: of neighbours, of a routed transport, of a communicator, and of
// the progress thread.
struct NestedSets {
  std::vector<Poller> sets;
  Status watch(int fd) {
    for (int depth = 0; depth < 4; ++depth) {
      auto poller = Poller::make();
      if (!poller.ok()) return poller.status();
      sets.push_back(poller.take());
    }
    for (std::size_t i = 0; i + 1 < sets.size(); ++i) {
      if (const Status added = sets[i + 1].add(sets[i].fd(), 0); !added.ok()) return added;
    }
    return sets.front().add(fd, 0);
  }
};

// epoll counts the sets that lead to an open file, and a file that was passed is the same one in all processes.
TEST(SharedLives, AreWatchedInNestedSetsByEachOf64Ranks) {
  const Child child;
  const UniqueFd passed = child.life();
  std::vector<std::shared_ptr<const UniqueFd>> lives;
  std::vector<NestedSets> sets(64);
  for (NestedSets& of_rank : sets) {
    // Each rank would be a process: ranks that are threads of one process have a descriptor each, too.
    SharedLives rank;
    static_cast<void>(rank.share(child.life()));
    lives.push_back(rank.share(UniqueFd(::dup(passed.get()))));
    const Status watched = of_rank.watch(lives.back()->get());
    ASSERT_TRUE(watched.ok()) << watched.text();
  }
}

TEST(SharedLives, AreWatchedByManyCommunicatorsInNestedSets) {
  const Child child;
  const std::size_t before = open_descriptors();
  constexpr std::size_t kCommunicators = 80;
  std::vector<std::shared_ptr<const UniqueFd>> lives;
  std::vector<NestedSets> sets(kCommunicators);
  for (NestedSets& of_communicator : sets) {
    lives.push_back(SharedLives().share(child.life()));
    const Status watched = of_communicator.watch(lives.back()->get());
    ASSERT_TRUE(watched.ok()) << watched.text();
  }
  EXPECT_EQ(open_descriptors(), before + 4 * kCommunicators + kCommunicators / kCommunicatorsOfALife);
}

// A poller takes a descriptor once, so ranks that are threads of one process have one each.
TEST(SharedLives, OfThreadsOfOneProcessAreSeveral) {
  const Child child;
  SharedLives lives;
  const auto first = lives.share(child.life());
  const auto second = lives.share(child.life());
  EXPECT_NE(first->get(), second->get());
}

// The number of a process may belong to another one later: what has ended is not passed on.
TEST(SharedLives, ThatHaveEndedAreNotShared) {
  Child child;
  UniqueFd late = child.life();
  const auto first = SharedLives().share(child.life());
  child.kill();
  const auto second = SharedLives().share(std::move(late));
  EXPECT_NE(first, second);
  EXPECT_TRUE(has_ended(second));
}

// A pipe says nothing of its process.
TEST(SharedLives, OfAPipeAreItsOwn) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd kept(ends[1]);
  const int number = ends[0];
  SharedLives lives;
  const auto first = lives.share(UniqueFd(ends[0]));
  EXPECT_EQ(first->get(), number);
  EXPECT_NE(lives.share(UniqueFd(::dup(number)))->get(), number);
}

TEST(SharedLives, OfThisProcessAreMade) {
  const auto life = make_liveness();
  ASSERT_TRUE(life.ok()) << life.status().text();
  EXPECT_FALSE(wait_readable(life->watched.get(), Deadline::at_ns(0)));
}

}  // namespace
}  // namespace fdl
