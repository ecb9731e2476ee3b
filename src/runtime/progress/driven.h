// Driven is what the owner of a world's progress drives: a communicator, and the operations that are queued for it.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/communicator.h"

namespace fdl {

// A group with its named operations, or an ordered communicator with its submitted calls. Only the owner of progress
// calls these functions.
class Driven {
 public:
  virtual ~Driven() = default;

  virtual Communicator& comm() = 0;
  // Advances the communicator and the operations without blocking. Returns whether anything moved.
  virtual bool progress() = 0;
  // Whether operations are in flight on this rank.
  virtual bool has_work() const = 0;
  // Whether operations wait for other ranks, which must be probed if nothing moves for a while.
  virtual bool waits() const = 0;
  // The clock time in ns at which progress() must be called even if nothing arrives. INT64_MAX: never.
  virtual int64_t next_alarm_ns() const = 0;
  // Returns a failure of this rank that is not reported to the coordinator yet, once; OK if there is none.
  virtual Status take_failure_report() = 0;
  // The communicator has ended by a failure of this rank, because an exception has left the operations in an unknown
  // state. take_failure_report() returns it.
  virtual void note_failure(const Status& why) = 0;
  // For how long nothing has moved; -1: it moved just now.
  int64_t still_for_ns(int64_t now_ns) const { return still_ns_ == 0 ? -1 : now_ns - still_ns_; }

 protected:
  Driven() = default;
  Driven(const Driven&) = delete;
  Driven& operator=(const Driven&) = delete;

 private:
  friend class DrivenSet;
  friend class ProgressThread;
  // ---- the state of its progress, kept by DrivenSet; is_polled_ also by ProgressThread ----
  bool is_lasting_ = false;  // it is driven until it is removed, not only while it has work
  bool is_active_ = false;   // it is driven
  bool is_polled_ = false;   // its descriptor is in the poller
  int64_t still_ns_ = 0;     // since when nothing has moved; 0: the last round moved something
  int64_t watched_ns_ = 0;   // since then, or since on_stuck was last called
};

}  // namespace fdl
