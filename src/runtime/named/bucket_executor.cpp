// BucketExecutor does one unit of work of the running bucket in each call, and begins as many buckets as it can.
#include "runtime/named/bucket_executor.h"

#include <utility>

#include "runtime/named/bucket/device_run.h"
#include "runtime/named/bucket/start_bucket.h"

namespace fdl {

BucketExecutor::BucketExecutor(Communicator& comm, std::string rank_name, std::shared_ptr<HostMemory> memory,
                               std::shared_ptr<LaunchTurns> turns, PendingBuckets& pending, OrderFollower& order,
                               OperationsInFlight& operations, GroupFailure& failure)
    : comm_(comm),
      pending_(pending),
      order_(order),
      operations_(operations),
      failure_(failure),
      fusion_(std::move(memory),
              [&comm](const std::shared_ptr<void>& grown, std::size_t bytes) { comm.keep(grown, bytes); }),
      device_(comm, std::move(rank_name)),
      turn_(comm, std::move(turns)) {}

bool BucketExecutor::progress() {
  bool moved = finish_without_turns();
  while (failure_.none()) {
    if (!running_) {
      if (!begin_next()) return moved;
      moved = true;
      if (!running_) continue;
    }
    if (running_->done()) {
      const std::unique_ptr<BucketRun> finished = std::move(running_);
      finish(*finished);
      if (launched_.empty()) turn_.leave();
      (void)finish_without_turns();
      moved = true;
      continue;
    }
    // One unit of work for each call, so that other groups make progress too. The collective that follows needs the
    // communicator's progress anyway.
    moved |= running_->progress();
    if (running_->tried() && resolve_trial()) moved = true;
    if (!running_->done()) return moved;
  }
  return moved;
}

// Begins the next bucket. Returns false if there is none, or if the scratch request of its group launch is in flight.
// After a true running_ may be null: the bucket has failed, or was launched with others.
bool BucketExecutor::begin_next() {
  if (!launched_.empty()) {
    running_ = std::move(launched_.front());
    launched_.pop_front();
    operations_.telemetry().runs(running_->entries());
    return true;
  }
  if (pending_.empty() && !order_.begin_optimistically()) return false;
  if (!may_launch()) return false;
  if (pending_.front_begins_group()) return begin_group();
  running_ = start_next();
  if (!running_) turn_.leave();
  return true;
}

void BucketExecutor::begin_turns() {
  takes_turns_ = true;
  without_turn_ = pending_.size();
}

// Other groups of this rank propose only once the launches that take no turn are queued. Returns whether they are now.
bool BucketExecutor::finish_without_turns() {
  if (!takes_turns_ || turn_.line().takes_turns() || without_turn_ > 0 || is_running() || group_launch_) return false;
  turn_.line().take_turns();
  return true;
}

// Whether the bucket at the front needs no turn at the device, or has it. What goes through the host occupies no
// device: the ranks have agreed on that in an earlier bucket, or in none.
bool BucketExecutor::may_launch() {
  const Bucket& bucket = *pending_.front().bucket;
  if (!takes_turns_ || without_turn_ > 0 || bucket.device < 0 || !bucket.error.empty()) return true;
  const auto device = device_.work_for(pending_.front());
  if (!device.ok()) return true;  // start_next() reports it
  CollectiveSpec spec;
  spec.count = 1;
  spec.device = &(*device)->device();
  awaits_turn_ = comm_.launches_on_device(spec) && !turn_.take();
  return !awaits_turn_;
}

// Begins the group launch at the front. The scratch buffer has the same size on all ranks, so all ranks reach the same
// answer to whether the buckets fit. Returns false while the scratch request is in flight.
bool BucketExecutor::begin_group() {
  const std::size_t count = pending_.group_size();
  const auto device = device_.work_for(pending_.front());
  if (device.ok() && !group_launch_) {
    std::vector<GroupLaunch::Need> needs;
    for (std::size_t i = 0; i < count; ++i)
      needs.push_back(DeviceRun::need_of(*pending_[i].bucket, pending_[i].entries));
    group_launch_ = std::make_unique<GroupLaunch>(comm_, **device, needs);
  }
  if (device.ok() && !group_launch_->is_ready()) return false;
  if (!device.ok() || !group_launch_->take_scratch().ok() || !group_launch_->fits()) {
    // If the cause is an error, the first bucket reports it.
    group_launch_.reset();
    pending_.dissolve_group();
    return true;
  }
  for (std::size_t i = 0; i < count; ++i) {
    launched_.push_back(start_next(group_launch_.get()));
    // No bucket of a group launch is an error (PendingBuckets), and the device of the first one serves all of them.
    FDL_CHECK(launched_.back() != nullptr);
  }
  group_launch_->start();
  group_launch_.reset();
  return true;
}

// Starts the bucket at the front, as part of `group_launch` if that is not null. Returns null if the bucket is an error
// or the device cannot be used.
std::unique_ptr<BucketRun> BucketExecutor::start_next(GroupLaunch* group_launch) {
  PlannedBucket planned = pending_.take_front();
  if (without_turn_ > 0) --without_turn_;
  if (!planned.bucket->error.empty()) {
    operations_.complete(planned.entries, error_of(*planned.bucket));
    return nullptr;
  }
  ++begun_;
  operations_.telemetry().begun(planned.entries);
  operations_.telemetry().runs(planned.entries);
  const auto device = device_.work_for(planned);
  if (!device.ok()) {
    comm_.interrupt(device.status());
    failure_.report(device.status());
    failure_.strand(planned.entries);
    return nullptr;
  }
  return start_bucket(std::move(planned), comm_, fusion_, operations_.telemetry(), *device, group_launch);
}

// Keeps the result of a run on trial back until it is certain whether all ranks have begun it. Returns whether the run
// was continued or withdrawn. If the plans have ended, the final counts cannot arrive and the group is about to fail.
// If all plans came, no rank has received final counts and begun the run with zeros, so the result is valid.
bool BucketExecutor::resolve_trial() {
  const LockedOrder::Fate fate = order_.fate();
  const bool is_open = fate == LockedOrder::Fate::open;
  if (is_open && !failure_.plans_have_ended()) return false;
  const bool is_real = is_open ? failure_.all_plans_came() : fate == LockedOrder::Fate::real;
  is_real ? running_->go_on() : running_->withdraw();
  return true;
}

// Completes the entries of a run. Entries of a withdrawn run are submitted again.
void BucketExecutor::finish(BucketRun& run) {
  if (run.is_provisional()) {
    order_.finish_position();
    if (run.withdrawn()) return order_.take_back(std::move(run.entries()));
  }
  order_.finish_round(run.ends_round());
  const bool group_failed = !run.status().ok() && !comm_.status().ok();
  if (!group_failed) return operations_.complete(run.entries(), run.status());
  failure_.strand(run.entries());
  failure_.report(run.status());
}

// The culprit's rank in the group becomes its rank in the world.
Status BucketExecutor::error_of(const Bucket& bucket) const {
  Error error{.code = bucket.code, .text = bucket.error};
  if (bucket.culprit >= 0 && bucket.culprit < comm_.size()) {
    const Member& culprit = comm_.members()[static_cast<std::size_t>(bucket.culprit)];
    error.culprit_rank = culprit.world_rank;
    error.culprit_host = culprit.host_name;
  }
  return Status(std::move(error));
}

void BucketExecutor::fail_all(const Status& why) {
  for (PlannedBucket& planned : pending_.take_all()) operations_.complete(planned.entries, why);
  without_turn_ = 0;
  awaits_turn_ = false;
  if (is_running() || group_launch_ || turn_.is_agreeing()) {
    // The communicator may still read and write the tensors. Their operations complete only after it has dropped them.
    comm_.interrupt(why);
    while (turn_.is_agreeing() || (group_launch_ && !group_launch_->is_ready())) comm_.progress();
    group_launch_.reset();
    if (const std::unique_ptr<BucketRun> run = std::move(running_)) drain(*run, why);
    for (const auto& run : std::exchange(launched_, {})) drain(*run, why);
  } else if (why.code() != Code::shut_down && comm_.works_on_device()) {
    // Work that is queued on the device may wait for a lost rank, and would block all that waits for the device.
    comm_.interrupt(why);
    comm_.progress();
  }
  turn_.line().end();
}

// Drives a run of an interrupted communicator to its end. Its entries complete with `why`, unless the run ends with a
// valid result.
void BucketExecutor::drain(BucketRun& run, const Status& why) {
  while (!run.done()) {
    comm_.progress();
    run.progress();
    if (run.tried()) run.withdraw();
  }
  const bool has_result = run.status().ok() && !run.withdrawn();
  operations_.complete(run.entries(), has_result ? ok_status() : why);
}

}  // namespace fdl
