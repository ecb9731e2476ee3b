// This header provides monotonic time in nanoseconds, and deadlines that an interrupt may bring forward. The wall clock
// may jump and is not used.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>

namespace fdl {

// steady_clock is CLOCK_MONOTONIC, which the kernel maps into the process, so a call needs no system call. Its zero
// differs between hosts: moments of two hosts cannot be compared.
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// About 73 years. Twice as long, added to now_ns(), does not overflow.
constexpr int64_t kLongest_ns = std::numeric_limits<int64_t>::max() / 4;

// Longer durations, infinity too, become kLongest_ns: users set large numbers where they mean no limit.
constexpr int64_t seconds_to_ns(double seconds) {
  constexpr double kLongest_s = static_cast<double>(kLongest_ns) / 1e9;
  if (!(seconds < kLongest_s)) return kLongest_ns;
  return seconds > -kLongest_s ? static_cast<int64_t>(seconds * 1e9) : -kLongest_ns;
}

// An interrupt brings the deadlines that refer to it forward to a moment that is not known when a wait begins. It is
// set once: first the moment, then the descriptor becomes readable, which wakes the threads that wait in poll(2).
struct Interrupt {
  // Between two calls of `ask` in a wait.
  static constexpr int64_t kAsk_ns = 250'000'000;

  std::atomic<int64_t> moment_ns{std::numeric_limits<int64_t>::max()};
  int fd = -1;
  // May be empty. A thread that waits until such a deadline calls it after each signal that it gets and every kAsk_ns.
  // It may set the interrupt. Set before the first wait.
  std::function<void()> ask;
};

// A moment after which waiting ends. Deadline::never() never passes.
class Deadline {
 public:
  static Deadline never() { return Deadline(std::numeric_limits<int64_t>::max()); }
  static Deadline at_ns(int64_t moment) { return Deadline(moment); }
  static Deadline after_ns(int64_t duration) {
    const int64_t now = now_ns();
    // The sum must not overflow.
    return duration >= std::numeric_limits<int64_t>::max() - now ? never() : Deadline(now + duration);
  }
  // Never, if seconds_to_ns() shortens the duration.
  static Deadline after_seconds(double seconds) {
    const int64_t duration = seconds_to_ns(seconds);
    return duration == kLongest_ns ? never() : after_ns(duration);
  }

  // The same moment, or that of `interrupt` if it is earlier. The interrupt outlives all copies of the deadline.
  Deadline interrupted_by(const Interrupt& interrupt) const { return Deadline(moment_, &interrupt); }

  bool is_never() const { return moment_ns() == std::numeric_limits<int64_t>::max(); }
  bool passed() const { return !is_never() && now_ns() >= moment_ns(); }
  // Whether an interrupt has made the moment earlier: the time that was allowed has not passed then.
  bool is_brought_forward() const {
    return interrupt_ != nullptr && interrupt_->moment_ns.load(std::memory_order_acquire) < moment_;
  }
  int64_t moment_ns() const {
    if (interrupt_ == nullptr) [[likely]]
      return moment_;
    return std::min(moment_, interrupt_->moment_ns.load(std::memory_order_acquire));
  }
  int64_t remaining_ns() const {
    const int64_t moment = moment_ns();
    return moment == std::numeric_limits<int64_t>::max() ? moment : std::max<int64_t>(0, moment - now_ns());
  }
  // The timeout for poll(2) and epoll_wait(2): -1 for never, rounded up so that a wait never ends before the deadline.
  int remaining_ms() const {
    if (is_never()) return -1;
    return static_cast<int>(std::min<int64_t>((remaining_ns() + 999'999) / 1'000'000, 1'000'000'000));
  }
  // The earlier of both. At most one of them refers to an interrupt, which the result refers to as well.
  Deadline earlier(Deadline other) const {
    return Deadline(std::min(moment_, other.moment_), interrupt_ != nullptr ? interrupt_ : other.interrupt_);
  }
  // The same deadline, `duration` later; negative: earlier. An interrupt is not moved.
  Deadline shifted_by_ns(int64_t duration) const {
    return moment_ == std::numeric_limits<int64_t>::max() ? *this : Deadline(moment_ + duration, interrupt_);
  }
  // The descriptor to wait for in addition, -1 if there is none or if the interrupt has been set.
  int interrupt_fd() const { return is_pending() ? interrupt_->fd : -1; }
  // A wait ends here to call ask(), and then goes on until the deadline.
  Deadline until_ask() const { return asks() ? earlier(after_ns(Interrupt::kAsk_ns)) : *this; }
  void ask() const {
    if (asks()) interrupt_->ask();
  }

 private:
  bool is_pending() const {
    return interrupt_ != nullptr &&
           interrupt_->moment_ns.load(std::memory_order_acquire) == std::numeric_limits<int64_t>::max();
  }
  bool asks() const { return is_pending() && interrupt_->ask; }
  // A moment of now_ns(). The largest value stands for never, so earlier() needs no special case.
  explicit Deadline(int64_t moment, const Interrupt* interrupt = nullptr) : moment_(moment), interrupt_(interrupt) {}
  int64_t moment_;
  const Interrupt* interrupt_;
};

}  // namespace fdl
