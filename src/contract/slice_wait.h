// SliceWait measures how long the next slice of a channel has been awaited, although the peer has sent it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fdl {

class SliceWait {
 public:
  // Nothing is awaited that was sent.
  void end() { checked_ns_ = 0; }

  // Call it from time to time while the slice at `position` is awaited. Returns the time since the first call for it.
  // Between two calls one second counts at most: this process may not have run.
  int64_t measure(uint64_t position, int64_t now_ns) {
    constexpr int64_t kLongestStep_ns = 1'000'000'000;
    if (checked_ns_ == 0 || position_ != position) {
      position_ = position;
      waited_ns_ = 0;
      checked_ns_ = now_ns;
    }
    waited_ns_ += std::min(now_ns - checked_ns_, kLongestStep_ns);
    checked_ns_ = now_ns;
    return waited_ns_;
  }
  // How long ago it was last measured; 0: the wait has not begun.
  int64_t since_measured_ns(int64_t now_ns) const { return checked_ns_ == 0 ? 0 : now_ns - checked_ns_; }

 private:
  uint64_t position_ = 0;
  int64_t waited_ns_ = 0;
  int64_t checked_ns_ = 0;  // 0: the wait has not begun
};

}  // namespace fdl
