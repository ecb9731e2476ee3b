// NcclWatchdog ends calls of NCCL that block for too long. Direct calls run in the driving thread, which a call that
// waits for another rank keeps from noticing anything else; so the time limit is kept by a thread of the watchdog's
// own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace fdl {

class NcclWatchdog {
 public:
  // `abort` makes a call that is blocked return. It is called at most once, in the watchdog's thread.
  explicit NcclWatchdog(std::function<void()> abort);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  // Around one call; calls do not nest. end() returns after abort() has, if the limit has passed.
  void begin(int64_t limit_ns);
  void end();
  // Whether abort() was called. Only between end() and begin().
  bool has_aborted() const { return has_aborted_; }

 private:
  static constexpr int64_t kIdle = 0;
  static constexpr int64_t kAborting = -1;
  static constexpr int64_t kAwake = 0;

  void watch();

  const std::function<void()> abort_;
  // When the call is to end; kIdle outside of calls. begin() and end() store it without a lock, because they are on the
  // path of every collective. Sequentially consistent, as wakes_ns_: one of both threads sees the other's store.
  std::atomic<int64_t> due_ns_{kIdle};
  std::atomic<int64_t> wakes_ns_{kAwake};  // until when the thread sleeps, unless begin() wakes it
  Mutex mutex_;
  CondVar changed_;
  std::atomic<bool> ends_{false};
  std::atomic<bool> has_aborted_{false};
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace fdl
