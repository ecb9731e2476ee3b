// NamedOperations executes the named operations of one group: it sends this rank's requests to the group's root,
// receives the plans of the root and runs their buckets in order.
//
// If the same order repeats, the root locks it and no messages are needed any more. If all ranks share memory, each one
// reads the progress of the others from the readiness flags. Otherwise the order is an optimistic one, in which the
// collectives themselves show that all ranks have begun (agree/order/locked_order.h).
//
// Only the thread that owns progress calls this class. The exception is names(), which any thread may use.
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

// NamesInFlight holds the names of a group's operations from submission to completion. Submitting threads insert them,
// and the thread that owns progress erases them.
class NamesInFlight {
 public:
  // Inserts all names and returns nothing. If one is in flight already, inserts none and returns that name.
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
  // `memory` is memory that all ranks of the host map, for the fusion buffer, or null. `rank_names` are the names of
  // the group's ranks in error texts. `comm` and `config` outlive this object.
  NamedOperations(Communicator& comm, const Config& config, std::vector<std::string> rank_names,
                  std::shared_ptr<HostMemory> memory = nullptr);
  ~NamedOperations();

  NamesInFlight& names() { return names_; }

  // Erases the name of an entry from names() when its operation completes. For operations of the C API, the submitting
  // thread has inserted the names before.
  void submit(std::vector<Entry> entries);
  // Sends requests, receives messages, makes a plan (root only) and advances the bucket that runs. Returns whether
  // anything moved.
  bool progress();
  // The clock time in ns at which progress() must be called even if nothing arrives, because a stall warning or a
  // timeout is due. INT64_MAX: never.
  int64_t next_alarm_ns() const;

  // Whether this rank has nothing in flight: no request, no bucket that waits and none that runs.
  bool idle() const { return submissions_.empty() && stranded_.empty() && todo_.empty() && !at_work(); }
  // Whether buckets that the ranks have agreed on are unfinished, or may still turn out to be agreed on. A rank that
  // leaves finishes them first, because the other ranks wait for it in them.
  bool running() const { return at_work() || !todo_.empty() || leaving_order(); }
  // Call before this rank leaves the group: it leaves a locked order, so that it promises no further position.
  void prepare_to_leave();

  // Rank `rank` of the group has left in good order. Operations that wait for it fail with `why`.
  void depart(int rank, const Status& why);
  // Fails all operations in flight now, and all later ones at submission. Only the first call has an effect.
  void fail_all(const Status& why);
  const Status& failure() const { return failure_; }
  // Null ends tracing. Operations that were submitted before are not traced.
  void trace_with(std::unique_ptr<Trace> trace);
  // Null disables metrics. Call before the first submit(), because entries must carry their time of submission.
  void count_with(std::shared_ptr<GroupMetrics> metrics) { metrics_ = std::move(metrics); }
  // Returns a failure of this rank that is not reported to the coordinator yet, once; OK if there is none. The caller
  // reports it, and passes the coordinator's failure decision to fail_all().
  Status take_failure_report() { return std::exchange(unsent_report_, {}); }

  uint64_t completed() const { return completed_; }
  uint64_t buckets() const { return bucket_count_; }
  uint64_t control_messages() const { return channel_.messages_sent(); }
  // How often an order was locked, and how many rounds of locked orders have begun on this rank.
  uint64_t lock_epochs() const { return lock_epochs_; }
  uint64_t locked_steps() const { return locked_steps_ + rounds(); }

 private:
  bool send_requests();
  bool receive();
  bool decide();
  void warn_of_stalls();
  // A bucket and this rank's entries of it. They are matched when the plan arrives, because a name that is submitted
  // again later is a new request.
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
  bool give_up_waiting();
  // Whether positions of an order that is being left may still have to run. In an optimistic order other ranks may wait
  // for this rank until the root has sent the final counts.
  bool leaving_order() const {
    const LockedOrder* order = submissions_.order();
    if (order == nullptr || !order->frozen()) return false;
    return order->optimistic() ? !root_is_gone() : order->waiting() > 0;
  }
  bool root_is_gone() const { return !root_ && !gone_.ok(); }
  uint64_t rounds() const;
  bool run();
  bool at_work() const { return running_ != nullptr || !launched_.empty(); }
  bool begin_optimistically();
  bool begin_next_run();
  bool begin_group();
  std::unique_ptr<BucketRun> start_next(GroupLaunch* group_launch = nullptr);
  void end_run(std::unique_ptr<BucketRun> run, const Status& why);
  Result<DeviceWork*> device_work(const Planned& planned);
  bool resolve_trial(BucketRun& run);
  void finish(BucketRun& run);
  void fail_bucket(Planned& planned);
  void complete(Entry& entry, const Status& status);
  void count_beginnings(const Planned& planned);
  void trace_runs(const std::vector<std::optional<Entry>>& entries);
  void trace_decided(const Planned& planned);
  void report_failure(const Status& why);
  void finish_departure();

  Communicator& comm_;
  const Config& config_;
  std::vector<std::string> rank_names_;
  NamesInFlight names_;
  std::unique_ptr<Trace> trace_;
  std::shared_ptr<GroupMetrics> metrics_;
  ControlChannel channel_;
  MemberSession member_;
  std::unique_ptr<RootSession> root_;  // on rank 0 of the group
  bool root_has_input_ = false;        // a message or a departure since the last decide() may have made buckets ready
  Submissions<Entry> submissions_;
  std::vector<Entry> stranded_;  // were running when the communicator failed; they wait for the failure decision
  std::deque<Planned> todo_;     // agreed on and not begun, in the order of execution
  std::unique_ptr<BucketRun> running_;
  std::deque<std::unique_ptr<BucketRun>> launched_;  // the later buckets of the group launch of running_
  std::unique_ptr<GroupLaunch> group_launch_;        // for the front of todo_, while its scratch request is in flight
  // How many buckets at the front of todo_ run singly, because their group launch does not fit into the memory.
  std::size_t run_singly_ = 0;
  bool provisional_ = false;  // running_ belongs to an optimistic order
  FusionBuffer fusion_;
  std::unique_ptr<DeviceWork> device_work_;  // for the group's device; null before the first tensor on one
  Status departure_;                         // set when the root has left in good order
  Status failure_;                           // set by fail_all(), final
  Status gone_;                              // why the messages of a peer ended; the first such peer
  bool leaving_ = false;
  // A failure of this rank. No bucket runs until the failure decision arrives or decision_due_ passes.
  Status failure_report_;
  Status unsent_report_;  // failure_report_ until take_failure_report()
  Deadline decision_due_ = Deadline::never();
  uint64_t published_ = 0;  // this rank's word in the readiness flags
  uint64_t submitted_ = 0;
  // give_up_waiting(): the sum of submitted, begun and completed when timeout_ was set. A change restarts the timeout.
  uint64_t seen_moves_ = 0;
  Deadline timeout_ = Deadline::never();
  uint64_t lock_epochs_ = 0;
  uint64_t locked_steps_ = 0;  // rounds of orders that were left
  uint64_t completed_ = 0;
  uint64_t bucket_count_ = 0;
};

}  // namespace fdl
