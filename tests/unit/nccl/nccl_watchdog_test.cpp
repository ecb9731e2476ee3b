// Tests of NcclWatchdog: calls of different limits, in any order.
#include "transports/nccl/nccl_watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.h"

namespace fdl {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kLong = 600'000 * kMillisecond;

// Whether `aborted` is set in time.
bool is_set(const std::atomic<bool>& aborted) {
  const Deadline deadline = Deadline::after_seconds(20);
  while (!aborted && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return aborted;
}

TEST(NcclWatchdog, AbortsACallAtItsLimit) {
  std::atomic<bool> aborted{false};
  NcclWatchdog watchdog([&] { aborted = true; });
  watchdog.begin(20 * kMillisecond);
  EXPECT_TRUE(is_set(aborted));
  watchdog.end();
  EXPECT_TRUE(watchdog.has_aborted());
}

// The thread sleeps until the first call is due when the second one begins.
TEST(NcclWatchdog, AbortsACallThatIsDueBeforeAnEarlierOne) {
  std::atomic<bool> aborted{false};
  NcclWatchdog watchdog([&] { aborted = true; });
  watchdog.begin(kLong);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  watchdog.end();
  watchdog.begin(20 * kMillisecond);
  EXPECT_TRUE(is_set(aborted));
  watchdog.end();
}

TEST(NcclWatchdog, LeavesCallsAloneThatEndInTime) {
  std::atomic<bool> aborted{false};
  {
    NcclWatchdog watchdog([&] { aborted = true; });
    for (int call = 0; call < 20'000; ++call) {
      watchdog.begin(call % 3 == 0 ? kLong : 20'000 * kMillisecond);
      watchdog.end();
      EXPECT_FALSE(watchdog.has_aborted());
    }
  }
  EXPECT_FALSE(aborted);
}

// Each round begins with a call that the thread may or may not see before the one that is due earlier.
TEST(NcclWatchdog, MissesNoEarlierLimitWhateverTheTiming) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> aborted{false};
    NcclWatchdog watchdog([&] { aborted = true; });
    watchdog.begin(kLong);
    for (int turn = 0; turn < 10 * round; ++turn) std::atomic_signal_fence(std::memory_order_seq_cst);
    watchdog.end();
    watchdog.begin(kMillisecond);
    ASSERT_TRUE(is_set(aborted)) << round;
    watchdog.end();
  }
}

}  // namespace
}  // namespace fdl
