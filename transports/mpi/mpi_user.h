// MpiUser is what uses MPI in this process: a transport, or collectives. All of them end before MPI is finalized, by
// the program or at the end of the process. MpiRest tells a waiting thread when to look again.
#pragma once

#include <sys/timerfd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class MpiUser {
 public:
  MpiUser() = default;
  MpiUser(const MpiUser&) = delete;
  MpiUser& operator=(const MpiUser&) = delete;

  // The hook for MpiLibrary::before_finalize(). Another thread may drive a user meanwhile; its calls do not block.
  static void leave_all() {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    for (MpiUser* user : std::exchange(all.open, {})) {
      while (user->driven_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
      user->leave();
      user->ended_.store(true, std::memory_order_release);
    }
  }

 protected:
  ~MpiUser() = default;

  // Ends the use of MPI. Runs once: by leave_all(), or by close().
  virtual void leave() = 0;

  void open() {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.open.push_back(this);
  }
  // The most derived destructor calls it.
  void close() {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    if (std::erase(all.open, this) > 0) leave();
  }

  // Around each use of MPI by the driving thread. enter() returns false if leave_all() has taken its place for good.
  bool enter() { return !driven_.exchange(true, std::memory_order_acquire); }
  void exit() { driven_.store(false, std::memory_order_release); }
  bool has_ended() const { return ended_.load(std::memory_order_acquire); }
  static Status after_end() {
    return Status(Code::shut_down,
                  "mpi: MPI has been finalized; call MPI_Finalize after the last operation of farandole");
  }

 private:
  struct Registry {
    std::mutex mutex;
    std::vector<MpiUser*> open;
  };
  static Registry& registry() {
    static Registry& all = *new Registry;  // never destroyed: exit handlers use it
    return all;
  }

  std::atomic<bool> driven_{false};
  std::atomic<bool> ended_{false};
};

// MPI has no descriptor to sleep on. A rank that waits looks again after an eighth of the time that it has waited so
// far, within these limits: that costs less than a hundredth of a core, and its sleep is too long by at most an eighth.
class MpiRest {
 public:
  static constexpr int64_t kFirst_ns = 50'000;
  static constexpr int64_t kLast_ns = 4'000'000;
  static constexpr int64_t kIdle_ns = 50'000'000;  // where nothing is expected but the end of a peer

  static Result<MpiRest> make() {
    UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (timer.get() < 0) return Status::from_errno("timerfd_create");
    return MpiRest(std::move(timer));
  }

  int fd() const { return timer_.get(); }
  // Something moved, or began.
  void note_move() { moved_ns_ = now_ns(); }
  void begin(bool busy) const { set(busy ? std::clamp((now_ns() - moved_ns_) / 8, kFirst_ns, kLast_ns) : kIdle_ns); }
  // Also discards that the timer has run out.
  void end() const { set(0); }

 private:
  explicit MpiRest(UniqueFd timer) : timer_(std::move(timer)) {}
  void set(int64_t ns) const {
    const itimerspec when{.it_interval = {}, .it_value = {ns / 1'000'000'000, ns % 1'000'000'000}};
    ::timerfd_settime(timer_.get(), 0, &when, nullptr);
  }

  UniqueFd timer_;
  int64_t moved_ns_ = now_ns();
};

}  // namespace fdl
