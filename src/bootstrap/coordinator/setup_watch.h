// SetupWatch ends a set-up with other ranks early if one of them is gone.
//
// Everything that the set-up waits for uses a deadline that interrupt() may bring forward. A rank that is lost, or that
// reports its failure in this set-up, interrupts at once. A rank that leaves in good order may have finished its part,
// so the others get kLeftGrace_ns more.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "system/event.h"

namespace fdl {

// Of the ranks that wait together, those that rank `me` probes: all of up to 32 others; of more, the first one and the
// two that follow `me`. Each rank is probed by another one that waits, so a stopped one is found, and the number of
// messages grows with the number of ranks, not with its square.
inline std::vector<int> ranks_to_probe(std::vector<int> others, int me) {
  constexpr std::size_t kProbedByAll = 32;
  if (others.size() <= kProbedByAll) return others;
  if (!std::ranges::is_sorted(others)) std::ranges::sort(others);
  const auto next = static_cast<std::size_t>(std::ranges::upper_bound(others, me) - others.begin());
  return {others.front(), others[next % others.size()], others[(next + 1) % others.size()]};
}

// How often each of the ranks that wait together for `ranks` others probes: not more often than every `usual_ns`, and
// in a large world so that the number of probes in a second does not grow with it. A stopped rank is found a little
// later.
inline int64_t probe_interval_ns(std::size_t ranks, int64_t usual_ns, int64_t lost_after_ns) {
  constexpr int64_t kRanksAtUsualRate = 128;
  constexpr int64_t kLeastProbes = 4;  // within lost_after
  const int64_t slowest = std::max(usual_ns, lost_after_ns / kLeastProbes);
  return std::min(usual_ns * std::max<int64_t>(1, static_cast<int64_t>(ranks) / kRanksAtUsualRate), slowest);
}

class SetupWatch {
 public:
  static constexpr int64_t kLeftGrace_ns = 1'000'000'000;

  // `ranks`: the other ranks that take part, by their number in the world. `comm`: the communicator that is made, or
  // empty.
  static Result<std::shared_ptr<SetupWatch>> make(std::vector<int> ranks, std::string comm) {
    FDL_ASSIGN_OR_RETURN(Event event, Event::make());
    if (!std::ranges::is_sorted(ranks)) std::ranges::sort(ranks);
    return std::shared_ptr<SetupWatch>(new SetupWatch(std::move(ranks), std::move(comm), std::move(event)));
  }

  const std::vector<int>& ranks() const { return ranks_; }  // in ascending order
  const std::string& comm() const { return comm_; }
  // Valid as long as this object.
  const Interrupt& interrupt() const { return interrupt_; }
  // Why a rank is gone: the text that all ranks have for it. OK while none is. From any thread.
  Status why() const {
    MutexLock lock(mutex_);
    return why_;
  }
  // The failure decision on the communicator, also where a rank was gone before. OK while there is none. From any
  // thread.
  Status decision() const {
    MutexLock lock(mutex_);
    return decision_;
  }
  // Whether this rank's own program has ended the set-up. From any thread.
  bool is_interrupted() const {
    MutexLock lock(mutex_);
    return is_interrupted_;
  }
  // Call before the first wait. The waits of the set-up ask `interrupted` now and then; true ends the set-up with
  // `why`.
  void end_when(std::function<bool()> interrupted, Status why) {
    interrupt_.ask = [this, interrupted = std::move(interrupted), why = std::move(why)] {
      if (!interrupted()) return;
      MutexLock lock(mutex_);
      is_interrupted_ = true;
      set(why, now_ns());
    };
  }
  // The first call counts. From any thread.
  void fire(const Status& why, int64_t moment_ns) {
    MutexLock lock(mutex_);
    set(why, moment_ns);
  }
  void decide(const Status& why, int64_t moment_ns) {
    MutexLock lock(mutex_);
    if (decision_.ok()) decision_ = why;
    set(why, moment_ns);
  }

 private:
  void set(const Status& why, int64_t moment_ns) FDL_REQUIRES(mutex_) {
    if (!why_.ok()) return;
    why_ = why;
    interrupt_.moment_ns.store(moment_ns, std::memory_order_release);
    event_.ring();
  }

  SetupWatch(std::vector<int> ranks, std::string comm, Event event)
      : ranks_(std::move(ranks)), comm_(std::move(comm)), event_(std::move(event)) {
    interrupt_.fd = event_.fd();
  }

  const std::vector<int> ranks_;
  const std::string comm_;
  Event event_;
  Interrupt interrupt_;
  mutable Mutex mutex_;
  Status why_ FDL_GUARDED_BY(mutex_);
  Status decision_ FDL_GUARDED_BY(mutex_);
  bool is_interrupted_ FDL_GUARDED_BY(mutex_) = false;
};

}  // namespace fdl
