// FailureDecisions keeps the coordinator's failure decisions, one for each communicator and the same on all ranks. A
// thread whose communicator failed locally waits here for the decision.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/config.h"
#include "base/mutex.h"
#include "base/status.h"

namespace fdl {

// When a rank ends the wait for a decision that it has requested now. The coordinator decides within lost_after_s, in
// which it probes the reported rank, and its own silence ends the wait within lost_after_s too. The margin is for a
// loaded machine: a rank that ends its wait too early may accuse a healthy one.
inline Deadline decision_deadline(const Config& config) {
  constexpr double kMargin_s = 10;
  return Deadline::after_seconds(2 * config.lost_after_s + config.suspect_after_s + kMargin_s);
}

// From any thread. Communicators are named by their id.
class FailureDecisions {
 public:
  // The first decision on a communicator stays; later ones are ignored.
  void deliver(const std::string& comm, const Status& why) {
    MutexLock lock(mutex_);
    failure_decisions_.emplace(comm, why);
    arrived_.notify_all();
  }
  void forget(const std::string& comm) {
    MutexLock lock(mutex_);
    failure_decisions_.erase(comm);
  }
  // No decision will be delivered any more: all waits return at once.
  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
    arrived_.notify_all();
  }
  // Without waiting: the decision, or nothing if there is none so far.
  std::optional<Status> find(const std::string& comm) const {
    MutexLock lock(mutex_);
    const auto found = failure_decisions_.find(comm);
    return found == failure_decisions_.end() ? std::nullopt : std::optional(found->second);
  }
  bool is_closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }
  // Nothing where the deadline passed or close() was called before a decision arrived. Time in which this process did
  // not run (stopped, or its machine paused) counts as one step at most: the decision may be on its way.
  std::optional<Status> wait(const std::string& comm, Deadline deadline) {
    MutexLock lock(mutex_);
    const auto is_over = [&]() FDL_REQUIRES(mutex_) { return closed_ || failure_decisions_.contains(comm); };
    for (int64_t left_ns = deadline.remaining_ns(); left_ns > 0; left_ns -= std::min(left_ns, kStep_ns)) {
      if (arrived_.wait(mutex_, Deadline::after_ns(std::min(left_ns, kStep_ns)), is_over)) break;
    }
    const auto found = failure_decisions_.find(comm);
    return found == failure_decisions_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  static constexpr int64_t kStep_ns = 1'000'000'000;

  mutable Mutex mutex_;
  CondVar arrived_;
  std::map<std::string, Status> failure_decisions_ FDL_GUARDED_BY(mutex_);
  bool closed_ FDL_GUARDED_BY(mutex_) = false;
};

}  // namespace fdl
