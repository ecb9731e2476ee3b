// BucketExecutor runs the pending buckets of a group, one after the other or as a group launch, and completes their
// operations.
//
// A bucket is in one of three places: pending, launched (a later member of the group launch that runs) or running. It
// leaves the last one when its collective is done on this rank. In an optimistic order, some ranks may not have begun
// the bucket that runs. Its result is then kept back until the final counts show whether all ranks have begun it.
//
// Once the group's plans say so, each bucket on a device takes a turn with those of other groups (LaunchTurns), and a
// group launch takes one for all its buckets.
//
// After a failure is reported or final, no bucket begins. If the communicator has failed, the operations of the bucket
// that ran are stranded until the failure decision, so that all ranks report the same error. Only the thread that owns
// progress calls this class.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "runtime/named/bucket/bucket_run.h"
#include "runtime/named/bucket/fusion_buffer.h"
#include "runtime/named/bucket/group_launch.h"
#include "runtime/named/group_device.h"
#include "runtime/named/group_failure.h"
#include "runtime/named/launch_turn.h"
#include "runtime/named/operations_in_flight.h"
#include "runtime/named/order/order_follower.h"
#include "runtime/named/pending_buckets.h"

namespace fdl {

class BucketExecutor {
 public:
  // `memory` is memory that all ranks of the host map, for the fusion buffer, or null. `rank_name` is the name of this
  // rank in error texts. All references outlive this object.
  BucketExecutor(Communicator& comm, std::string rank_name, std::shared_ptr<HostMemory> memory,
                 std::shared_ptr<LaunchTurns> turns, PendingBuckets& pending, OrderFollower& order,
                 OperationsInFlight& operations, GroupFailure& failure);

  // Advances the bucket that runs and begins the next ones. Returns whether anything moved.
  bool progress();
  // The bucket that runs; null if none does.
  const BucketRun* running() const { return running_.get(); }
  bool is_running() const { return running_ != nullptr || !launched_.empty(); }
  // The buckets that are appended from now on take turns.
  void begin_turns();
  bool takes_turns() const { return takes_turns_; }
  LaunchTurn& turn() { return turn_; }
  // Whether the next bucket waits for launches of other groups.
  bool awaits_turn() const { return awaits_turn_; }
  // Completes all pending and running operations with `why`, in this order. Returns when the communicator no longer
  // uses their tensors.
  void fail_all(const Status& why);
  // The error of a bucket that has one.
  Status error_of(const Bucket& bucket) const;
  // How many buckets were begun.
  uint64_t begun() const { return begun_; }

 private:
  bool begin_next();
  bool finish_without_turns();
  bool may_launch();
  bool begin_group();
  std::unique_ptr<BucketRun> start_next(GroupLaunch* group_launch = nullptr);
  bool resolve_trial();
  void finish(BucketRun& run);
  void drain(BucketRun& run, const Status& why);

  Communicator& comm_;
  PendingBuckets& pending_;
  OrderFollower& order_;
  OperationsInFlight& operations_;
  GroupFailure& failure_;
  FusionBuffer fusion_;
  GroupDevice device_;
  LaunchTurn turn_;
  bool takes_turns_ = false;
  bool awaits_turn_ = false;
  std::size_t without_turn_ = 0;  // how many buckets at the front of pending_ take none
  std::unique_ptr<BucketRun> running_;
  std::deque<std::unique_ptr<BucketRun>> launched_;  // none is null
  std::unique_ptr<GroupLaunch> group_launch_;  // for the front of pending_, while its scratch request is in flight
  uint64_t begun_ = 0;
};

}  // namespace fdl
