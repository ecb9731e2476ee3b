// NamedOperations runs the buckets that were agreed upon, one after the other or as a group launch, and completes their
// operations.
#include <utility>

#include "runtime/named/named_operations.h"

namespace fdl {

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
    // One piece a call, so that other groups get their turn; what follows needs the communicator's progress anyway.
    moved |= running_->progress();
    if (running_->tried() && negotiate(*running_)) moved = true;
    if (running_ && !running_->done()) return moved;
  }
  return moved;
}

// False: there is none, or not yet.
bool NamedOperations::begin_next_run() {
  if (!beside_.empty()) {
    running_ = std::move(beside_.front());
    beside_.pop_front();
    if (trace_) trace_runs(running_->entries());
    return true;
  }
  if (todo_.empty() && !begin_optimistically()) return false;
  if (one_by_one_ == 0 && todo_.front().bucket->launch_with_next) return begin_group();
  one_by_one_ -= one_by_one_ > 0 ? 1 : 0;
  running_ = start_next();
  return true;
}

// Those at the front of todo_ that begin together are all there: they were decided, or published, together. What they
// share is the same on all ranks, and so is whether there is room for all of them. False: that is not known yet.
bool NamedOperations::begin_group() {
  std::size_t count = 1;
  while (todo_[count - 1].bucket->launch_with_next) {
    FDL_CHECK(count < todo_.size());
    ++count;
  }
  const auto device = device_work(todo_.front());
  if (device.ok() && !joint_) {
    std::vector<GroupLaunch::Need> needs;
    for (std::size_t i = 0; i < count; ++i) needs.push_back(BucketRun::need_of(*todo_[i].bucket, todo_[i].entries));
    joint_ = std::make_unique<GroupLaunch>(comm_, **device, needs);
  }
  if (device.ok() && !joint_->asked()) return false;
  if (!device.ok() || !joint_->take_scratch().ok() || !joint_->fits()) {  // the first one will tell why, if it fails
    joint_.reset();
    one_by_one_ = count;
    return true;
  }
  for (std::size_t i = 0; i < count; ++i) beside_.push_back(start_next(joint_.get()));
  joint_->start();
  joint_.reset();
  return true;
}

bool NamedOperations::begin_optimistically() {
  const LockedOrder* order = submissions_.order();
  return order != nullptr && order->optimistic() && begin_next();
}

std::unique_ptr<BucketRun> NamedOperations::start_next(GroupLaunch* joint) {
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
    suspect(device.status());
    for (auto& entry : planned.entries) {
      if (entry) stranded_.push_back(std::move(*entry));
    }
    return nullptr;
  }
  return std::make_unique<BucketRun>(std::move(planned.bucket), std::move(planned.entries), comm_, fusion_, trace_,
                                     provisional_, *device, joint);
}

// Null for tensors of the CPU's. The tensors of one group lie on one device of each rank: submitting saw to that.
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

// What has been tried is kept back while it is not known whether all have begun it. Where the root will not tell any
// more, the group is about to fail.
bool NamedOperations::negotiate(BucketRun& run) {
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
  if (group_failed) suspect(status);
}

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
