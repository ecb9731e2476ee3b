// NamedOperations: the named level of one group: requests go to the root, plans come back, buckets run in their order.
//
// An order that repeats is locked: then nothing is sent. Where all ranks share memory they read on a board how far the
// others are; elsewhere the order is a blind one, whose collectives themselves tell (agree/locked_order.h).
//
// Everything here belongs to the loop's thread, except names(): who is in flight.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agree/session/session.h"
#include "agree/session/submissions.h"
#include "base/config.h"
#include "base/mutex.h"
#include "engine/communicator.h"
#include "runtime/named/bucket_run.h"
#include "runtime/named/control_channel.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/telemetry/trace.h"

namespace fdl {

// The names of a group's operations in flight; submitting threads and the loop share it.
class NamesInFlight {
 public:
  // All of them, or none and the first that is in flight already.
  std::optional<std::string> insert(const std::vector<std::string>& names) {
    MutexLock lock(mutex_);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names_.insert(names[i]).second) continue;
      for (std::size_t j = 0; j < i; ++j) names_.erase(names[j]);
      return names[i];
    }
    return std::nullopt;
  }
  void erase(const std::string& name) {
    MutexLock lock(mutex_);
    names_.erase(name);
  }

 private:
  Mutex mutex_;
  std::set<std::string> names_ FDL_GUARDED_BY(mutex_);
};

class NamedOperations {
 public:
  // `memory`: of the host's ranks, or null.
  NamedOperations(Communicator& comm, const Config& config, std::vector<std::string> rank_names,
                  std::shared_ptr<HostMemory> memory = nullptr);
  ~NamedOperations();

  NamesInFlight& names() { return names_; }

  void submit(std::vector<Entry> entries);
  // Sends what was submitted, takes in what arrived, decides (root), runs; true if anything moved.
  bool progress();
  // When progress() must be called although nothing arrived: stalls. INT64_MAX: never.
  int64_t next_alarm_ns() const;

  bool idle() const { return submissions_.empty() && stranded_.empty() && todo_.empty() && !at_work(); }
  // Buckets that were agreed upon and are not finished, or not known yet; a rank that leaves finishes them first.
  bool running() const { return at_work() || !todo_.empty() || leaving_order(); }
  // This rank is about to leave: nothing more is promised to the others.
  void prepare_to_leave();

  // A rank of the group said good-bye: what waits for it fails with `why`.
  void depart(int rank, const Status& why);
  // Everything fails now, and everything later.
  void fail_all(const Status& why);
  const Status& failure() const { return failure_; }
  // Null: nobody watches. Operations that were submitted before are not traced.
  void trace_with(std::unique_ptr<Trace> trace);
  // Null: nobody counts. Before anything is submitted; entries then carry when they were.
  void count_with(std::shared_ptr<GroupMetrics> metrics) { metrics_ = std::move(metrics); }
  // What this rank met and the coordinator has not been told yet; OK: nothing. The coordinator's verdict comes back as
  // fail_all().
  Status take_failure_report() { return std::exchange(untold_, {}); }

  uint64_t completed() const { return completed_; }
  uint64_t buckets() const { return bucket_count_; }
  uint64_t control_messages() const { return channel_.messages_sent(); }
  // How often an order was locked, and how often such an order has been run.
  uint64_t lock_epochs() const { return lock_epochs_; }
  uint64_t locked_steps() const { return locked_steps_ + rounds(); }

 private:
  bool send_requests();
  bool hear();
  bool decide();
  void warn_of_stalls();
  // A bucket and what this rank has of it, matched when the plan came: a name that is submitted again meanwhile is
  // another request.
  using Planned = Submissions<Entry>::Begun;

  void take_plan(ConstBytes bytes);
  Status check(const Bucket& bucket) const;
  void lock_order(std::vector<Bucket> buckets);
  bool follow_order();
  bool read_readiness_flags(const LockedOrder& order);
  void watch_readiness_flags(const LockedOrder& order);
  bool begin_next();
  void publish();
  void end_order();
  bool lose_patience();
  // What waits in an order that is being left: some of it may have to run. In a blind one others may wait for this rank
  // until the root has told how it is left.
  bool leaving_order() const {
    const LockedOrder* order = submissions_.order();
    if (order == nullptr || !order->frozen()) return false;
    return order->optimistic() ? !root_is_gone() : order->waiting() > 0;
  }
  bool root_is_gone() const { return !root_ && !gone_.ok(); }
  uint64_t rounds() const;
  bool run();
  bool at_work() const { return running_ != nullptr || !beside_.empty(); }
  bool begin_optimistically();
  bool begin_next_run();
  bool begin_group();
  std::unique_ptr<BucketRun> start_next(GroupLaunch* joint = nullptr);
  void end_run(std::unique_ptr<BucketRun> run, const Status& why);
  Result<DeviceWork*> device_work(const Planned& planned);
  bool negotiate(BucketRun& run);
  void finish(BucketRun& run);
  void fail_bucket(Planned& planned);
  void complete(Entry& entry, const Status& status);
  void count_beginnings(const Planned& planned);
  void trace_runs(const std::vector<std::optional<Entry>>& entries);
  void trace_decided(const Planned& planned);
  void suspect(const Status& why);
  void settle_departure();

  Communicator& comm_;
  const Config& config_;
  std::vector<std::string> rank_names_;
  NamesInFlight names_;
  std::unique_ptr<Trace> trace_;
  std::shared_ptr<GroupMetrics> metrics_;
  ControlChannel channel_;
  MemberSession member_;
  std::unique_ptr<RootSession> root_;  // on rank 0 of the group
  bool root_heard_ = false;            // something arrived that may make buckets ready
  Submissions<Entry> submissions_;
  std::vector<Entry> stranded_;  // they were under way when the communicator failed, and wait for the verdict
  std::deque<Planned> todo_;
  std::unique_ptr<BucketRun> running_;
  std::deque<std::unique_ptr<BucketRun>> beside_;  // those that began together with it
  std::unique_ptr<GroupLaunch> joint_;             // of those at the front of todo_, while it asks for room
  std::size_t one_by_one_ = 0;                     // of those, how many cannot begin together for want of memory
  bool provisional_ = false;                       // the one that runs is of a blind order
  FusionBuffer fusion_;
  std::unique_ptr<DeviceWork> device_work_;  // of the device that the group's tensors lie on, once any has
  Status departure_;                         // the root said good-bye
  Status failure_;                           // everything has ended
  Status gone_;                              // the first peer whose messages ended
  bool leaves_ = false;
  Status failure_report_;  // something failed here; until the verdict comes, or its deadline, nothing runs
  Status untold_;
  Deadline decision_due_ = Deadline::never();
  uint64_t published_ = 0;  // this rank's word on the board
  uint64_t submitted_ = 0;
  uint64_t seen_moves_ = 0;  // submissions, beginnings and ends when last something waited in a locked order
  Deadline timeout_ = Deadline::never();
  uint64_t lock_epochs_ = 0;
  uint64_t locked_steps_ = 0;  // of orders that were left
  uint64_t completed_ = 0;
  uint64_t bucket_count_ = 0;
};

}  // namespace fdl
