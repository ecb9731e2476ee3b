// Silence measures for how long a coordinator has not answered.
//
// It has no clock: the caller passes the time, so tests drive it. Any message from the coordinator counts as an answer.
// Time in which this process did not run (stopped, or its machine paused) counts as at most one step, because the
// coordinator's answer may be waiting in the socket.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fdl {

class Silence {
 public:
  enum class Finding { none, warning, lost };

  // A silence of `warning_ns` is found once, and one of `lost_ns` from then on at each query. `step_ns` is the longest
  // usual time between two queries.
  Silence(int64_t warning_ns, int64_t lost_ns, int64_t step_ns)
      : warning_ns_(warning_ns), lost_ns_(lost_ns), step_ns_(step_ns) {}

  // This process sends a query that the coordinator answers.
  Finding query(int64_t now_ns) {
    if (unanswered_) silent_ns_ += std::min(now_ns - queried_ns_, step_ns_);
    unanswered_ = true;
    queried_ns_ = now_ns;
    if (silent_ns_ >= lost_ns_) return Finding::lost;
    if (silent_ns_ < warning_ns_ || warned_) return Finding::none;
    warned_ = true;
    return Finding::warning;
  }

  // Whether a query has no answer yet.
  bool is_open() const { return unanswered_; }

  // The coordinator has answered. Returns how long it was silent if that was found as a warning, else 0.
  int64_t answered() {
    const int64_t silent_ns = warned_ ? silent_ns_ : 0;
    unanswered_ = false;
    warned_ = false;
    silent_ns_ = 0;
    return silent_ns;
  }

 private:
  int64_t warning_ns_;
  int64_t lost_ns_;
  int64_t step_ns_;
  bool unanswered_ = false;
  bool warned_ = false;
  int64_t queried_ns_ = 0;
  int64_t silent_ns_ = 0;  // since the first query that has no answer
};

}  // namespace fdl
