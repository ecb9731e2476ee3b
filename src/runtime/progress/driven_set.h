// DrivenSet advances all communicators of a world that one thread drives, reports those in which nothing moves, and
// prepares them for a sleep.
//
// It has no threads, no descriptors and no clock. ProgressThread sleeps for it on a poller, and simulated jobs sleep in
// simulated time. Only the owner of progress uses it.
#pragma once

#include <exception>
#include <functional>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/config.h"
#include "engine/spin.h"
#include "runtime/progress/driven.h"

namespace fdl {

class DrivenSet {
 public:
  // Hooks add communicators, and remove none.
  struct Hooks {
    // Operations of the communicator wait, and nothing in it has moved for another config.suspect_after_s; waited_ns
    // counts from the last move.
    std::function<void(Communicator&, int64_t waited_ns)> on_stuck;
    // An operation failed on this rank; the coordinator must decide what that means for all ranks.
    std::function<void(Communicator&, const Status&)> on_failure_report;
  };
  // `config` outlives this object.
  DrivenSet(const Config& config, Hooks hooks) : config_(config), hooks_(std::move(hooks)) {}

  // From now on it is driven: while it has work, or, if it is lasting, until it is removed.
  void add(Driven& driven);
  void add_lasting(Driven& driven);
  // It must not be prepared for a sleep.
  void remove(Driven& driven);
  const std::vector<Driven*>& all() const { return active_; }

  // Advances each of them once. Returns whether anything moved.
  bool progress();
  // Nothing has moved in the last round: reports those that have waited for too long.
  void watch(int64_t now_ns);
  bool has_work() const;
  PeerActivity peer_activity() const;
  // When progress() or watch() has something to do although nothing arrives.
  Deadline next_alarm() const;

  // Each of them wakes the sleeper from now on. `watch` is called for those whose descriptor is not watched yet, and
  // returns whether it is. False: one has work to do at once, and finish_sleep() must follow.
  template <typename Watch>
  bool prepare_to_sleep(const Watch& watch) {
    while (prepared_ < active_.size()) {
      Driven& driven = *active_[prepared_++];
      if (!driven.comm().prepare_to_sleep()) return false;
      if (!driven.is_polled_) driven.is_polled_ = watch(driven);
    }
    return true;
  }
  void finish_sleep();

  // Runs `work`. An exception ends `driven`, or everything that is driven if it is null. Other threads wait for what
  // this thread drives, so an exception must not end it, and neither may it end the process because one operation needs
  // more memory than there is. What was interrupted is in an unknown state and ends, on all ranks; what it had in hand
  // fails by the destructor of UnfinishedOperation.
  template <typename Work>
  void guard(Driven* driven, const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      if (driven != nullptr) return fail(*driven, error);
      for (Driven* one : active_) fail(*one, error);
    }
  }

 private:
  bool progress(Driven& driven);
  void fail(Driven& driven, const std::exception& error);

  const Config& config_;
  const Hooks hooks_;
  std::vector<Driven*> active_;  // changes only while prepared_ is 0
  std::size_t prepared_ = 0;     // communicators that are prepared for a sleep: the first of active_
};

}  // namespace fdl
