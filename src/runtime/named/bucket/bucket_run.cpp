// BucketRun has the states that all runs share.
#include "runtime/named/bucket/bucket_run.h"

#include <algorithm>

namespace fdl {

BucketRun::BucketRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry)
    : comm_(comm),
      telemetry_(telemetry),
      entries_(std::move(planned.entries)),
      bucket_(std::move(planned.bucket)),
      provisional_(planned.provisional),
      ends_round_(planned.ends_round) {}

void BucketRun::start() {
  if (const Status begun = begin(); !begun.ok()) fail_here(begun);
}

void BucketRun::go_on() {
  state_ = State::running;
  continue_after_collective();
}

void BucketRun::withdraw() {
  withdrawn_ = true;
  restore_inputs();
  finish({});
}

void BucketRun::start_collective(GroupLaunch* group_launch) {
  if (Trace* trace = telemetry_.trace(); trace != nullptr) {
    trace->collective(operation().spec.collective, comm_.runner_of(operation().spec));
  }
  group_launch == nullptr ? comm_.start(operation()) : group_launch->add(operation());
}

// Every operation takes this path, so a text is built only for a failure.
void BucketRun::conclude(const Status& status) {
  if (!status.ok()) return finish(status.during(title_of(bucket()), comm_.phase()));
  error_bound_ = std::max(error_bound_, collective_.error_bound);
  if (!provisional_ || std::exchange(was_tried_, true)) return continue_after_collective();
  state_ = State::tried;
}

bool BucketRun::conclude_if_completed() {
  if (!operation().completion.done) return false;
  conclude(operation().completion.status);
  return true;
}

void BucketRun::record(Activity activity) const {
  if (Trace* trace = telemetry_.trace(); trace != nullptr) trace->activity(activity);
}

void BucketRun::finish(Status status) {
  if (bucket().compression != Compression::none) {
    for (auto& entry : entries_) {
      if (entry) entry->result().error_bound = error_bound_;
    }
  }
  status_ = std::move(status);
  state_ = State::done;
}

// The other ranks wait for this rank, or soon will.
void BucketRun::fail_here(const Status& why) {
  const Status own = comm_.own(why).during(title_of(bucket()));
  comm_.interrupt(own);
  finish(own);
}

}  // namespace fdl
