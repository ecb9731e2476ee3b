// Spin decides what a thread does between two looks while nothing moves: spin, give its processor away, or sleep.
//
// Spinning is fast where the awaited rank runs on another processor. The kernel may keep two ranks on one processor for
// seconds although another one is free; each would then spin while the other could run. What the ranks publish of
// themselves (PeerActivity) tells a thread that it is in the way: it yields, and if that goes on, it moves away. A rank
// that has just been woken needs longer than a usual spin; the thread that woke it spins for that time too, because
// otherwise both would sleep and wake each other at every operation, for as long as operations follow one another.
#pragma once

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/clock.h"
#include "base/relax.h"
#include "contract/waitable.h"
#include "system/process/processor.h"

namespace fdl {

class Spin {
 public:
  // Call when nothing has moved for `still_ns`. Waits for a moment and returns true; or returns false: now sleep. A
  // thread spins for `usual_ns`, or longer or shorter because of the peers. `activity()` is called now and then, and
  // returns a PeerActivity.
  template <typename Activity>
  bool wait(int64_t still_ns, int64_t usual_ns, const Activity& activity) {
    usual_ns_ = usual_ns;
    if (still_ns >= next_look_ns_) {
      const PeerActivity peers = activity();
      next_look_ns_ = still_ns + kLookInterval_ns;
      yields_ = peers.on_this_processor;
      crowded_looks_ = peers.should_leave ? crowded_looks_ + 1 : 0;
      const bool is_due = crowded_looks_ >= kCrowdedLooks && std::has_single_bit(crowded_looks_);
      if ((is_due || (peers.should_leave && has_lost_slice_)) && leave_processor()) yields_ = false;
      has_lost_slice_ = false;
      // Half as much again, because the estimate is a mean. Longer waits are not worth a processor.
      if (peers.wake_up_ns > 0) extra_ns_ = std::min(peers.wake_up_ns + peers.wake_up_ns / 2, kLongestExtra_ns);
    }
    const bool is_hopeful = in_vain_ < kMostInVain;
    if (still_ns >= (is_hopeful ? usual_ns : usual_ns / kShortened) + extra_ns_) return false;
    if (yields_) {
      const int64_t before_ns = now_ns();
      ::sched_yield();
      has_lost_slice_ |= now_ns() - before_ns >= kTimeSlice_ns;
    } else {
      relax();
    }
    return true;
  }

  // Something has moved. `slept_ns`: how long the thread slept in this wait; 0: it did not.
  void moved(int64_t slept_ns) {
    next_look_ns_ = kFirstLook_ns;
    extra_ns_ = 0;
    yields_ = false;
    in_vain_ = slept_ns < usual_ns_ ? 0 : in_vain_ + 1;
  }

 private:
  // Most waits are shorter than the first look. It costs some cache misses.
  static constexpr int64_t kFirstLook_ns = 1'000;
  static constexpr int64_t kLookInterval_ns = 5'000;
  static constexpr int64_t kLongestExtra_ns = 500'000;
  // After so many waits in a row that were much longer than a spin, a thread spins for this fraction.
  static constexpr int kMostInVain = 8;
  static constexpr int64_t kShortened = 8;

  // After so many looks in a row on the processor of an awaited rank, a thread moves to another one, and again after
  // twice, four times ... as many if it is moved back. That takes as long as several waits.
  static constexpr uint32_t kCrowdedLooks = 64;
  // Two ranks that yield to each other have the processor back within some ten microseconds. A yield that takes this
  // long has given a time slice to another program, as the next one would: the thread moves at the next look.
  static constexpr int64_t kTimeSlice_ns = 200'000;

  int64_t usual_ns_ = 0;
  int64_t next_look_ns_ = kFirstLook_ns;
  int64_t extra_ns_ = 0;
  bool yields_ = false;
  bool has_lost_slice_ = false;  // since the last look
  int in_vain_ = 0;
  uint32_t crowded_looks_ = 0;
};

}  // namespace fdl
