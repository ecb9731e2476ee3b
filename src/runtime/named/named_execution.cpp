// This file implements how NamedOperations runs the buckets that the ranks have agreed on, one after the other or as a
// group launch, and completes their operations.
#include <utility>

#include "runtime/named/named_operations.h"

namespace fdl {

// Advances the bucket that runs and begins the next ones. Returns whether anything moved. After a failure nothing is
// begun until the failure decision has arrived.
bool NamedOperations::run() {
  bool moved = false;
  while (failure_.ok() && failure_report_.ok()) {
    if (!running_) {
      if (!begin_next_run()) return moved;
      moved = true;
      if (!running_) continue;
    }
    if (running_->done()) {
      const std::unique_ptr<BucketRun> finished = std::move(running_);
      finish(*finished);
      moved = true;
      continue;
    }
    // One unit of work for each call, so that other groups make progress too. The collective that follows needs the
    // communicator's progress anyway.
    moved |= running_->progress();
    if (running_->tried() && resolve_trial(*running_)) moved = true;
    if (running_ && !running_->done()) return moved;
  }
  return moved;
}

// Begins the next bucket. Returns false if there is none, or if the scratch request of its group launch is in flight.
// After a true running_ may be null: the bucket has failed, or was launched with others.
bool NamedOperations::begin_next_run() {
  if (!launched_.empty()) {
    running_ = std::move(launched_.front());
    launched_.pop_front();
    if (trace_) trace_runs(running_->entries());
    return true;
  }
  if (todo_.empty() && !begin_optimistically()) return false;
  if (run_singly_ == 0 && todo_.front().bucket->launch_with_next) return begin_group();
  run_singly_ -= run_singly_ > 0 ? 1 : 0;
  running_ = start_next();
  return true;
}

// Begins the group launch at the front of todo_. All its buckets are there, because they were decided in one plan or
// published in one step. The scratch buffer has the same size on all ranks, so all ranks reach the same answer to
// whether the buckets fit. Returns false while the scratch request is in flight.
bool NamedOperations::begin_group() {
  std::size_t count = 1;
  while (todo_[count - 1].bucket->launch_with_next) {
    FDL_CHECK(count < todo_.size());
    ++count;
  }
  const auto device = device_work(todo_.front());
  if (device.ok() && !group_launch_) {
    std::vector<GroupLaunch::Need> needs;
    for (std::size_t i = 0; i < count; ++i) needs.push_back(BucketRun::need_of(*todo_[i].bucket, todo_[i].entries));
    group_launch_ = std::make_unique<GroupLaunch>(comm_, **device, needs);
  }
  if (device.ok() && !group_launch_->asked()) return false;
  if (!device.ok() || !group_launch_->take_scratch().ok() ||
      !group_launch_->fits()) {  // if the cause is an error, the first bucket reports it
    group_launch_.reset();
    run_singly_ = count;
    return true;
  }
  for (std::size_t i = 0; i < count; ++i) launched_.push_back(start_next(group_launch_.get()));
  group_launch_->start();
  group_launch_.reset();
  return true;
}

bool NamedOperations::begin_optimistically() {
  const LockedOrder* order = submissions_.order();
  return order != nullptr && order->optimistic() && begin_next();
}

// Starts the bucket at the front of todo_, as part of `group_launch` if that is not null. Returns null if the bucket is
// an error or the device cannot be used.
std::unique_ptr<BucketRun> NamedOperations::start_next(GroupLaunch* group_launch) {
  Planned planned = std::move(todo_.front());
  todo_.pop_front();
  if (!planned.bucket->error.empty()) {
    fail_bucket(planned);
    return nullptr;
  }
  ++bucket_count_;
  if (metrics_) count_beginnings(planned);
  if (trace_) trace_runs(planned.entries);
  provisional_ = planned.provisional;
  auto device = device_work(planned);
  if (!device.ok()) {
    comm_.interrupt(device.status());
    report_failure(device.status());
    for (auto& entry : planned.entries) {
      if (entry) stranded_.push_back(std::move(*entry));
    }
    return nullptr;
  }
  return std::make_unique<BucketRun>(std::move(planned.bucket), std::move(planned.entries), comm_, fusion_, trace_,
                                     provisional_, *device, group_launch);
}

// Returns null for tensors on the CPU. The tensors of one group lie on one device of each rank, which submission has
// checked (Group::claim_device()).
Result<DeviceWork*> NamedOperations::device_work(const Planned& planned) {
  if (planned.bucket->device < 0) return static_cast<DeviceWork*>(nullptr);
  for (const auto& entry : planned.entries) {
    if (device_work_ || !entry) continue;
    FDL_ASSIGN_OR_RETURN(device_work_, DeviceWork::make(entry->place->used()));
  }
  if (device_work_) return device_work_.get();
  const Member& me = comm_.members()[static_cast<std::size_t>(comm_.rank())];
  return Status::blame(me.world_rank, me.host_name, Code::unsupported,
                       rank_names_[static_cast<std::size_t>(comm_.rank())] +
                           " has joined before it used a device, and the others go on with tensors on theirs: let each "
                           "rank run at least one step");
}

// Holds the result of a run on trial back until it is certain whether all ranks have begun it. Returns whether the run
// was continued or withdrawn. If the root is gone, the final counts cannot arrive and the group is about to fail.
bool NamedOperations::resolve_trial(BucketRun& run) {
  const LockedOrder::Fate fate = submissions_.order()->fate();
  if (fate == LockedOrder::Fate::open && !root_is_gone()) return false;
  fate == LockedOrder::Fate::real ? run.go_on() : run.withdraw();
  return true;
}

void NamedOperations::count_beginnings(const Planned& planned) {
  const int64_t now = now_ns();
  for (const auto& entry : planned.entries) {
    if (entry && !entry->holds) metrics_->began(GroupMetrics::row_of(entry->request.kind), now - entry->submitted_ns);
  }
}

// Completes the entries of a run. Entries of a withdrawn run are submitted again. If the communicator has failed, the
// entries wait for the failure decision, so that all ranks report the same error.
void NamedOperations::finish(BucketRun& run) {
  const Status status = run.status();
  if (std::exchange(provisional_, false)) {
    submissions_.finish();
    if (run.withdrawn()) return submissions_.take_back(std::move(run.entries()));
  }
  const bool group_failed = !status.ok() && !comm_.status().ok();
  for (auto& entry : run.entries()) {
    if (!entry) continue;
    if (group_failed) {
      stranded_.push_back(std::move(*entry));
    } else {
      complete(*entry, status);
    }
  }
  if (group_failed) report_failure(status);
}

// Completes this rank's entries of an error bucket. The culprit's rank in the group becomes its rank in the world.
void NamedOperations::fail_bucket(Planned& planned) {
  const Bucket& bucket = *planned.bucket;
  Error error{.code = bucket.code, .text = bucket.error};
  if (bucket.culprit >= 0 && bucket.culprit < comm_.size()) {
    const Member& culprit = comm_.members()[static_cast<std::size_t>(bucket.culprit)];
    error.culprit_rank = culprit.world_rank;
    error.culprit_host = culprit.host_name;
  }
  const Status why(std::move(error));
  for (auto& entry : planned.entries) {
    if (entry) complete(*entry, why);
  }
}

// The name becomes free before the handle is done: a caller that waits may submit the same name again at once.
void NamedOperations::complete(Entry& entry, const Status& status) {
  names_.erase(entry.request.name);
  ++completed_;
  if (trace_ && entry.traced != 0) trace_->completed(entry.traced, status.code());
  if (metrics_ && !entry.holds) {
    const bool failed = !status.ok() && status.code() != Code::shut_down;
    metrics_->ended(GroupMetrics::row_of(entry.request.kind), entry.byte_count(), now_ns() - entry.submitted_ns,
                    failed);
  }
  if (status.ok()) return entry.handle->finish_one(status);
  entry.handle->finish_one(status.during(std::string(name_of(entry.request.kind)) + " '" + entry.request.name + "'"));
}

}  // namespace fdl
