// NamedOperations executes the named operations of one group. It composes the parts, which do the work, and connects
// them:
//
//   submit()  ->  Submissions     what this rank has submitted and not begun
//                 PlanExchange    sends the requests to the root, and receives the plans of the root
//                 OrderFollower   while an order is locked, no messages are needed: appends the positions that may run
//                 PendingBuckets  agreed on and not begun, from plans and from the locked order
//                 BucketExecutor  runs them, and completes their operations
//   fail_all()    GroupFailure    the failure that this rank reports, and the final one
//
// An entry is in one place at a time: in the submissions, in a pending, launched or running bucket, or stranded in the
// failure. Only the thread that owns progress calls this class. The exception is names(), which any thread may use.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/coordinator/rank_state.h"
#include "runtime/named/bucket_executor.h"
#include "runtime/named/group_failure.h"
#include "runtime/named/operations_in_flight.h"
#include "runtime/named/order/order_follower.h"
#include "runtime/named/pending_buckets.h"
#include "runtime/named/plan_exchange.h"

namespace fdl {

class NamedOperations final : private PlanExchange::Receiver {
 public:
  // `memory` is memory that all ranks of the host map, for the fusion buffer, or null. `turns`: those at the device, of
  // all groups of this rank; null: this is the only group that uses one. `comm` and `config` outlive this object.
  NamedOperations(Communicator& comm, const Config& config, std::shared_ptr<HostMemory> memory = nullptr,
                  OrderTuning tuning = {}, std::shared_ptr<LaunchTurns> turns = nullptr);
  ~NamedOperations();
  NamedOperations(const NamedOperations&) = delete;
  NamedOperations& operator=(const NamedOperations&) = delete;

  const std::shared_ptr<NamesInFlight>& names() { return operations_.names(); }

  // After fail_all() an entry completes at once with the failure.
  void submit(std::vector<Entry> entries);
  // Advances all parts. Returns whether anything moved.
  bool progress();
  // The clock time in ns at which progress() must be called even if nothing arrives, because a stall warning or a
  // timeout is due. INT64_MAX: never.
  int64_t next_alarm_ns() const;

  // Whether this rank has nothing in flight: no request, no bucket that waits and none that runs.
  bool idle() const;
  // Whether buckets that the ranks have agreed on are unfinished, or may still turn out to be agreed on. A rank that
  // leaves finishes them first, because the other ranks wait for it in them.
  bool running() const;
  // Whether an agreed bucket waits for launches of other groups of this rank, which must be driven meanwhile.
  bool awaits_turn() const { return executor_.awaits_turn(); }
  // Whether progress() has an order to end, or a plan to make: the next step then begins without delay.
  bool is_changing_order() const { return order_.may_end() || exchange_.has_input(); }
  // Call before this rank leaves the group: it leaves a locked order, so that it promises no further position.
  void prepare_to_leave() { order_.prepare_to_leave(); }
  // Ends this rank's part in the group: fails all operations in flight and all later ones with `why`. Call after
  // prepare_to_leave(), once nothing is running() or for a deadline.
  void leave(const Status& why);

  // Rank `rank` of the group has left in good order. Operations that wait for it fail with `why`.
  void depart(int rank, const Status& why);
  // Fails all operations in flight now, and all later ones at submission. Only the first call has an effect.
  void fail_all(const Status& why);
  const Status& failure() const { return failure_.failure(); }
  // Returns a failure of this rank that is not reported to the coordinator yet, once; OK if there is none. The caller
  // reports it, and passes the coordinator's failure decision to fail_all().
  Status take_failure_report() { return failure_.take_report(); }
  // The coordinator has ended in good order. The group goes on; from here on this rank decides its failures alone.
  void end_decisions() { failure_.decisions_end(); }
  // An exception has left the parts in an unknown state: reports `why`, and advances nothing from here on.
  void stop(const Status& why) {
    stopped_ = true;
    failure_.report(why);
  }

  // Null ends tracing. On the root the timeline also shows when the request of each rank arrives.
  void trace_with(std::unique_ptr<Trace> trace);
  // On the root: called with each stall. Without it a stall is logged here.
  void report_stalls_to(std::function<void(const Stall& stall)> function) { on_stall_ = std::move(function); }
  // The root has reported with `text` that ranks have not submitted these names. The handles that have waited for
  // `least_ns` keep the text until all ranks have: a younger one may be the next operation of that name.
  void note_stall(const std::vector<std::string>& names, const std::string& text, int64_t least_ns);
  // Null disables metrics. Call before the first submit().
  void count_with(std::shared_ptr<GroupMetrics> metrics) { operations_.telemetry().count_with(std::move(metrics)); }

  // Adds what this rank has submitted and not completed, and on the root the names that ranks have not agreed on.
  // `still_ns`: for how long nothing has moved; -1: unknown.
  void describe(const std::string& group, int64_t still_ns, RankState& state);

  // The history outlives this object. Call before the first submit().
  void record_in(History& history, const std::string& group) { operations_.telemetry().record_in(history, group); }

  struct Counts {
    uint64_t operations = 0;  // completed
    uint64_t buckets = 0;     // begun
    uint64_t control_messages = 0;
    uint64_t lock_epochs = 0;   // how often an order was locked
    uint64_t locked_steps = 0;  // rounds of locked orders that have begun on this rank
  };
  Counts counts() const;

 private:
  void take_plan(Plan&& plan) override;
  std::string describe_agreement() const;
  bool apply_deferred();
  void apply(Plan&& plan);
  void complete_refused();
  bool announce_shared_device();
  bool begin_turns();
  void fail_exchange(const Status& why) override { fail_all(why); }
  void end_peer(int peer, const Status& why) override;
  void end_plans(bool all_came) override { failure_.plans_end(all_came); }
  void report_stall(const Stall& stall) override;

  Communicator& comm_;
  std::function<void(const Stall&)> on_stall_;
  OperationsInFlight operations_;
  GroupFailure failure_;
  bool stopped_ = false;  // by stop()
  Submissions<Entry> submissions_;
  PendingBuckets pending_;
  std::deque<Plan> deferred_;  // plans that wait for the end of the order in force
  bool is_announced_ = false;  // that another group of this rank uses its device too
  bool begins_turns_ = false;  // once the order in force has ended
  PlanExchange exchange_;
  OrderFollower order_;
  BucketExecutor executor_;
};

}  // namespace fdl
