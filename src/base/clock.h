// This header provides monotonic time in nanoseconds and deadlines on it. The wall clock may jump and is not used.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace fdl {

// steady_clock is CLOCK_MONOTONIC, which the kernel maps into the process, so a call needs no system call. Its zero
// differs between hosts: moments of two hosts cannot be compared.
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Valid up to 9.2e9 seconds; Deadline::after_seconds() treats longer times as never.
constexpr int64_t seconds_to_ns(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

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
  // 9e9 seconds, about 285 years, is nearly the range of an int64_t in nanoseconds.
  static Deadline after_seconds(double seconds) { return seconds >= 9e9 ? never() : after_ns(seconds_to_ns(seconds)); }

  bool is_never() const { return moment_ == std::numeric_limits<int64_t>::max(); }
  bool passed() const { return !is_never() && now_ns() >= moment_; }
  int64_t moment_ns() const { return moment_; }
  int64_t remaining_ns() const { return is_never() ? moment_ : std::max<int64_t>(0, moment_ - now_ns()); }
  // The timeout for poll(2) and epoll_wait(2): -1 for never, rounded up so that a wait never ends before the deadline.
  int remaining_ms() const {
    if (is_never()) return -1;
    return static_cast<int>(std::min<int64_t>((remaining_ns() + 999'999) / 1'000'000, 1'000'000'000));
  }
  Deadline earlier(Deadline other) const { return moment_ < other.moment_ ? *this : other; }

 private:
  // A moment of now_ns(). The largest value stands for never, so earlier() needs no special case.
  explicit Deadline(int64_t moment) : moment_(moment) {}
  int64_t moment_;
};

}  // namespace fdl
