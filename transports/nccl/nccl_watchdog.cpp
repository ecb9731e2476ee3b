// NcclWatchdog's thread sleeps until the call that it has seen is due. It finds out about later calls then, so that
// begin() has to wake it only after a long time without calls.
#include "transports/nccl/nccl_watchdog.h"

#include <utility>

#include "base/clock.h"
#include "base/thread_role.h"

namespace fdl {

NcclWatchdog::NcclWatchdog(std::function<void()> abort) : abort_(std::move(abort)), thread_([this] { watch(); }) {}

NcclWatchdog::~NcclWatchdog() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void NcclWatchdog::begin(int64_t limit_ns) {
  due_ns_.store(Deadline::after_ns(limit_ns).moment_ns());
  if (!sleeps_.load()) return;
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

void NcclWatchdog::end() {
  if (due_ns_.exchange(kIdle) != kAborting) return;
  const MutexLock lock(mutex_);  // held while abort_() runs
}

void NcclWatchdog::watch() {
  is_library_thread = true;
  const MutexLock lock(mutex_);
  while (!ends_) {
    int64_t due = due_ns_.load();
    if (due <= kIdle) {
      sleeps_.store(true);
      changed_.wait(mutex_, Deadline::never(), [&] { return ends_.load() || due_ns_.load() > kIdle; });
      sleeps_.store(false);
    } else if (now_ns() < due) {
      changed_.wait(mutex_, Deadline::at_ns(due), [&] { return ends_.load(); });
    } else if (!has_aborted_ && due_ns_.compare_exchange_strong(due, kAborting)) {
      has_aborted_ = true;
      abort_();
    }
  }
}

}  // namespace fdl
