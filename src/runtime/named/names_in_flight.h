// NamesInFlight records the names of a group's operations, so that a second submission of a name is rejected while the
// first one takes it.
//
// A name is taken from the submission until the caller observes the end of the operation: a wait that returns, a poll
// that finds it done, or its callback. When the operation itself completes has no influence. The outcome of a second
// submission therefore follows from the order of this rank's calls, which is the same on all ranks of a correct
// program, and not from the speed of the ranks. A handle that is freed before keeps the names until its operation is
// done.
//
// All functions may be called by any thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace fdl {

class NamesInFlight {
 public:
  // Inserts all names and returns nothing. If one is taken already, inserts none and returns that name.
  std::optional<std::string> insert(const std::vector<std::string>& names) {
    MutexLock lock(mutex_);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names_.insert(names[i]).second) continue;
      for (std::size_t j = 0; j < i; ++j) names_.erase(names[j]);
      return names[i];
    }
    return std::nullopt;
  }
  void erase(const std::vector<std::string>& names) {
    MutexLock lock(mutex_);
    for (const std::string& name : names) names_.erase(name);
  }

 private:
  Mutex mutex_;
  std::set<std::string> names_ FDL_GUARDED_BY(mutex_);
};

// The names of one submission. The handle owns it. It keeps NamesInFlight alive, because a handle outlives its group.
class TakenNames {
 public:
  // Returns the name that another submission has taken, if any; this object then has no names. Call at most once,
  // before another thread can use this object.
  std::optional<std::string> take(std::shared_ptr<NamesInFlight> in_flight, std::vector<std::string> names) {
    if (auto taken = in_flight->insert(names)) return taken;
    in_flight_ = std::move(in_flight);
    names_ = std::move(names);
    holds_.store(true, std::memory_order_release);
    return std::nullopt;
  }
  // All of them, also once they are free. Constant after take().
  const std::vector<std::string>& list() const { return names_; }
  bool any() const { return holds_.load(std::memory_order_relaxed); }
  // Makes the names free. Later calls have no effect.
  void release() {
    if (any() && holds_.exchange(false, std::memory_order_acquire)) {
      in_flight_->erase(names_);
    }
  }

 private:
  std::shared_ptr<NamesInFlight> in_flight_;
  std::vector<std::string> names_;
  std::atomic<bool> holds_{false};
};

}  // namespace fdl
