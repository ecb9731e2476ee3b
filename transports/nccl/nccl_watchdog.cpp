// NcclWatchdog's thread sleeps until the call that it has seen is due. It finds out about calls that are due later
// then, so that begin() has to wake it only after a long time without calls, or for a call that is due earlier.
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
  const int64_t due = Deadline::after_ns(limit_ns).moment_ns();
  due_ns_.store(due);
  if (due >= wakes_ns_.load()) return;
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
    const bool is_called = due > kIdle && !has_aborted_;
    if (!is_called || now_ns() < due) {
      const Deadline until = is_called ? Deadline::at_ns(due) : Deadline::never();
      const auto is_due_earlier = [&](int64_t next) {
        return next > kIdle && next < until.moment_ns() && !has_aborted_;
      };
      wakes_ns_.store(until.moment_ns());
      changed_.wait(mutex_, until, [&] { return ends_.load() || is_due_earlier(due_ns_.load()); });
      wakes_ns_.store(kAwake);
    } else if (due_ns_.compare_exchange_strong(due, kAborting)) {
      has_aborted_ = true;
      abort_();
    }
  }
}

}  // namespace fdl
