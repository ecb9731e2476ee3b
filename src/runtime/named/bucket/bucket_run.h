// BucketRun executes one bucket on a communicator, one unit of work for each call. start_bucket() chooses the class
// that runs a bucket:
//
//   HostRun                  on the CPU, through the fusion buffer where several tensors are reduced together
//   TrialRun                 one tensor on the CPU whose reduction may have to be withdrawn
//   AdasumRun                on the CPU, as several collectives
//   DeviceRun                on a device: done when all its work is queued there
//   SymmetricAllocationRun   no collective: allocates symmetric memory on a device
//
// A bucket of an optimistic order is provisional: some ranks may not begin it with their tensors. Its run stops once in
// the state tried(), in which all ranks have begun it and all inputs can be restored.
//
// An error of this rank alone interrupts the communicator, because the other ranks wait for this rank. Only the thread
// that owns progress calls these classes.
#pragma once

#include <memory>
#include <utility>

#include "runtime/named/bucket/bucket_collective.h"
#include "runtime/named/bucket/group_launch.h"
#include "runtime/named/entry.h"
#include "runtime/named/named_telemetry.h"

namespace fdl {

class BucketRun {
 public:
  virtual ~BucketRun() = default;
  BucketRun(const BucketRun&) = delete;
  BucketRun& operator=(const BucketRun&) = delete;

  // Call once. An error leaves the run done, with the communicator interrupted.
  void start();
  // Does the next unit of work, at most the copy of one tensor. Returns whether anything moved.
  bool progress() { return state_ == State::running && advance(); }
  bool done() const { return state_ == State::done; }
  bool tried() const { return state_ == State::tried; }
  // Only when tried(). go_on(): all ranks have begun the bucket, so it continues. withdraw() restores the inputs and
  // ends the run without a result.
  void go_on();
  void withdraw();
  bool withdrawn() const { return withdrawn_; }
  bool is_provisional() const { return provisional_; }
  uint32_t ends_round() const { return ends_round_; }  // as in PlannedBucket
  const Status& status() const { return status_; }
  Entries& entries() { return entries_; }
  const Bucket& bucket() const { return *bucket_; }

 protected:
  // All references outlive the run.
  BucketRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry);

  // Starts the bucket's collective, or ends the run if there is none.
  virtual Status begin() = 0;
  virtual bool advance() = 0;
  // Continues when the collective has succeeded, and after go_on().
  virtual void continue_after_collective() = 0;
  // Only for a provisional bucket, before the results are written to the outputs.
  virtual void restore_inputs() {}

  // Starts the operation of `collective_`, or adds it to `group_launch`, which then starts it. This object must stay
  // where it is until the operation has completed.
  void start_collective(GroupLaunch* group_launch = nullptr);
  // Continues after the collective that ended with `status`: on trial, if the bucket is provisional.
  void conclude(const Status& status);
  // Concludes the operation of `collective_` if it has completed. Returns whether it has.
  bool conclude_if_completed();
  // Records an activity of the bucket in the timeline.
  void record(Activity activity) const;
  void finish(Status status);
  // Ends the communicator with an error of this rank.
  void fail_here(const Status& why);

  Operation& operation() { return collective_.operation; }

  Communicator& comm_;
  NamedTelemetry& telemetry_;
  Entries entries_;
  BucketCollective collective_;

 private:
  enum class State { running, tried, done };

  const std::shared_ptr<const Bucket> bucket_;
  const bool provisional_;
  const uint32_t ends_round_;
  bool was_tried_ = false;
  bool withdrawn_ = false;
  double error_bound_ = 0;  // the largest of the run's collectives
  State state_ = State::running;
  Status status_;
};

}  // namespace fdl
