// PollTimer is what a rank sleeps on where a network has no descriptor: it tells when to look for messages again.
#pragma once

#include <sys/timerfd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

// A rank that waits looks again after an eighth of the time that it has waited so far, within these limits: that costs
// less than a hundredth of a core, and its sleep is too long by at most an eighth.
class PollTimer {
 public:
  static constexpr int64_t kFirst_ns = 50'000;
  static constexpr int64_t kLast_ns = 4'000'000;
  static constexpr int64_t kIdle_ns = 50'000'000;  // where nothing is expected but the end of a peer

  static Result<PollTimer> make() {
    UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (timer.get() < 0) return Status::from_errno("timerfd_create");
    return PollTimer(std::move(timer));
  }

  int fd() const { return timer_.get(); }
  // Something moved, or began.
  void note_move() { moved_ns_ = now_ns(); }
  void begin(bool busy) const { set(busy ? std::clamp((now_ns() - moved_ns_) / 8, kFirst_ns, kLast_ns) : kIdle_ns); }
  // Also discards that the timer has run out.
  void end() const { set(0); }

 private:
  explicit PollTimer(UniqueFd timer) : timer_(std::move(timer)) {}
  void set(int64_t ns) const {
    const itimerspec when{.it_interval = {}, .it_value = {ns / 1'000'000'000, ns % 1'000'000'000}};
    ::timerfd_settime(timer_.get(), 0, &when, nullptr);
  }

  UniqueFd timer_;
  int64_t moved_ns_ = now_ns();
};

}  // namespace fdl
