// Tests of Spin: how long a thread spins before it sleeps, by what its peers publish and by how earlier waits ended.
#include "engine/spin.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace fdl {
namespace {

constexpr int64_t kUsual_ns = 50'000;

// Looks once a microsecond while nothing moves. Returns how long it was before the thread should sleep.
int64_t spin_in_vain(Spin& spin, const PeerActivity& peers, int* looks = nullptr) {
  int64_t still_ns = 0;
  const auto activity = [&] {
    if (looks != nullptr) ++*looks;
    return peers;
  };
  while (spin.wait(still_ns, kUsual_ns, activity)) still_ns += 1'000;
  return still_ns;
}

TEST(Spin, SpinsForTheUsualTimeWithoutKnowledge) {
  Spin spin;
  EXPECT_EQ(spin_in_vain(spin, {}), kUsual_ns);
}

TEST(Spin, AShortWaitDoesNotLookAtThePeers) {
  Spin spin;
  int looks = 0;
  const auto activity = [&] {
    ++looks;
    return PeerActivity();
  };
  EXPECT_TRUE(spin.wait(0, kUsual_ns, activity));
  EXPECT_TRUE(spin.wait(999, kUsual_ns, activity));
  EXPECT_EQ(looks, 0);
  spin_in_vain(spin, {}, &looks);
  EXPECT_EQ(looks, 10) << "after 1, 6, 11 ... and 46 us";
}

TEST(Spin, CoversTheWakeUpOfAPeerThatWasWoken) {
  Spin spin;
  EXPECT_EQ(spin_in_vain(spin, {.wake_up_ns = 40'000}), kUsual_ns + 60'000);
  spin.moved(0);
  EXPECT_EQ(spin_in_vain(spin, {}), kUsual_ns) << "the next wait is an ordinary one";
}

TEST(Spin, AVeryLongWakeUpIsNotWaitedFor) {
  Spin spin;
  EXPECT_EQ(spin_in_vain(spin, {.wake_up_ns = 1'000'000'000}), kUsual_ns + 500'000);
}

TEST(Spin, WaitsInVainShortenTheSpinAndOneThatWasShortRestoresIt) {
  Spin spin;
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(spin_in_vain(spin, {}), kUsual_ns);
    spin.moved(10 * kUsual_ns);
  }
  EXPECT_EQ(spin_in_vain(spin, {}), kUsual_ns);
  spin.moved(10 * kUsual_ns);
  EXPECT_EQ(spin_in_vain(spin, {}), 7'000) << "an eighth, in steps of a microsecond";
  // A whole spin would have seen the end of this sleep.
  spin.moved(kUsual_ns - 1);
  EXPECT_EQ(spin_in_vain(spin, {}), kUsual_ns);
}

TEST(Spin, AWaitThatSpinningEndsCountsAsNoneInVain) {
  Spin spin;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(spin_in_vain(spin, {}), kUsual_ns);
    spin.moved(i % 7 == 0 ? 0 : 10 * kUsual_ns);
  }
}

TEST(Spin, WithoutACoreOfItsOwnAThreadSleepsAtOnce) {
  Spin spin;
  EXPECT_FALSE(spin.wait(0, 0, [] { return PeerActivity(); }));
}

// ---- leaving the processor ----

cpu_set_t affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

// Moves the calling thread to the first processor that it may use, as the kernel would put it there: its affinity
// stays.
int begin_on_the_first(const cpu_set_t& allowed) {
  int first = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(first), &allowed)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(first), &one);
  EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(::sched_setaffinity(0, sizeof allowed, &allowed), 0);
  return first;
}

TEST(LeaveProcessor, KeepsTheAffinity) {
  const cpu_set_t before = affinity();
  ASSERT_GE(CPU_COUNT(&before), 2) << "this test needs two processors";
  EXPECT_TRUE(leave_processor());
  const cpu_set_t after = affinity();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(LeaveProcessor, FailsWhereNoOtherIsAllowed) {
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(this_processor()), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_FALSE(leave_processor());
    const cpu_set_t after = affinity();
    EXPECT_TRUE(CPU_EQUAL(&one, &after));
  }).join();
}

// How many looks it takes until the thread has moved; the kernel may move it at any time too, so a few attempts count.
int looks_until_it_leaves(const PeerActivity& peers) {
  int fewest = 1000;
  for (int attempt = 0; attempt < 5; ++attempt) {
    std::thread([&] {
      const int begin = begin_on_the_first(affinity());
      Spin spin;
      int looks = 0;
      while (looks < 1000 && this_processor() == begin) {
        spin.wait(1'000, kUsual_ns, [&] { return ++looks, peers; });
        spin.moved(0);
      }
      fewest = std::min(fewest, looks);
    }).join();
  }
  return fewest;
}

TEST(Spin, LeavesTheProcessorThatAnAwaitedRankNeeds) {
  const cpu_set_t allowed = affinity();
  ASSERT_GE(CPU_COUNT(&allowed), 2) << "this test needs two processors";
  EXPECT_LE(looks_until_it_leaves({.on_this_processor = true, .should_leave = true}), 64);
}

// Another program, on the first processor that this thread may use.
class OtherProgram {
 public:
  OtherProgram()
      : thread_([this] {
          const cpu_set_t allowed = affinity();
          cpu_set_t one;
          CPU_ZERO(&one);
          CPU_SET(static_cast<std::size_t>(begin_on_the_first(allowed)), &one);
          EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
          while (!ends_.load(std::memory_order_relaxed)) {
          }
        }) {}
  ~OtherProgram() {
    ends_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

TEST(Spin, LeavesSoonerIfOtherProgramsTakeTheTimeThatItYields) {
  const cpu_set_t allowed = affinity();
  ASSERT_GE(CPU_COUNT(&allowed), 2) << "this test needs two processors";
  const OtherProgram other;
  EXPECT_LE(looks_until_it_leaves({.on_this_processor = true, .should_leave = true}), 8);
}

}  // namespace
}  // namespace fdl
