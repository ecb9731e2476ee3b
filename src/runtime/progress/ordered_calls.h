// OrderedCalls holds the submitted calls of one ordered communicator, from the submission to the outcome.
//
// Any thread submits a call; the owner of progress starts the calls in the order of submission, advances them, and
// publishes each outcome in the call's handle. So a call progresses whether or not a thread waits for it.
//
// A collective on a device starts when it is its turn at the device (LaunchOrder); those behind it on the same
// communicator wait with it.
//
//   submitted -> in flight -> succeeded -----------------------------------> handle done
//                          -> failed, waits for the coordinator's decision -> handle done
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "runtime/named/handle.h"
#include "runtime/progress/driven.h"
#include "runtime/progress/failure_decisions.h"
#include "runtime/progress/launch_order.h"
#include "runtime/telemetry/metrics.h"

namespace fdl {

// One call with everything that must stay in place until it is done, except for the caller's buffers.
struct OrderedCall {
  const char* title = "";  // "allreduce", for errors; a static string
  std::variant<Operation, Message> work;
  // Copies of the caller's arrays: the operation's spec has spans of them until it completes.
  std::vector<std::size_t> counts;
  std::vector<std::size_t> recv_counts;
  std::string algorithm;                           // so does its algorithm
  int64_t timeout_ns = 0;                          // how long it may run; 0: without a limit
  uint64_t bytes = 0;                              // for the metrics: what this rank contributes
  int64_t began_ns = 0;                            // for the metrics; 0: not counted
  bool may_never_come = false;                     // its failure is not reported to the coordinator
  UnfinishedOperation handle;                      // of a submitted call
  std::shared_ptr<UsedDevice> used;                // the device of the call's buffers; null: the CPU
  std::vector<std::unique_ptr<OrderedCall>> with;  // collectives that are launched together with it, behind it
  // Set by OrderedCalls: the end of timeout_ns, and the turn of a collective on a device.
  Deadline due = Deadline::never();
  LaunchOrder::Ticket ticket = {};

  Completion& completion() {
    return std::visit([](auto& one) -> Completion& { return one.completion; }, work);
  }
};

// Counts the end of a collective that began at `began_ns`. The second form counts nothing if the call is not counted.
void count_end(GroupMetrics& metrics, Collective collective, uint64_t bytes, int64_t began_ns, const Status& outcome);
void count_end(GroupMetrics* metrics, const OrderedCall& call, const Status& outcome);

// Only the owner of progress uses it. The communicator must have no operation that was started in another way.
class OrderedCalls final : public Driven {
 public:
  // `group` names the communicator's group in errors. The arguments outlive this object.
  OrderedCalls(Communicator& comm, std::string group, const Config& config, const FailureDecisions& decisions,
               LaunchOrder& launch_order, std::shared_ptr<GroupMetrics> metrics)
      : comm_(comm),
        group_(std::move(group)),
        config_(config),
        decisions_(decisions),
        launch_order_(launch_order),
        metrics_(std::move(metrics)) {}

  // Starts the call, and those that are launched with it. Its handle is done in a later progress(), or here after
  // end().
  void start(std::unique_ptr<OrderedCall> call);
  // When this moment has passed and a call is in flight, the communicator ends with TIMEOUT. Replaces the former limit.
  void limit(Deadline deadline);
  // Ends the communicator, all calls in flight and all later ones with this error, without the coordinator's decision.
  void end(const Status& why);

  Communicator& comm() override { return comm_; }
  bool progress() override;
  bool has_work() const override {
    return !collectives_.empty() || !held_.empty() || !messages_.empty() || !failed_.empty();
  }
  bool waits() const override { return has_work() && !comm_.has_failed(); }
  int64_t next_alarm_ns() const override;
  Status take_failure_report() override { return std::exchange(unsent_report_, {}); }
  void note_failure(const Status& why) override;

 private:
  using Call = std::unique_ptr<OrderedCall>;

  void begin(Call call);
  void refuse(Call call, const Status& why);
  static void leave_device(OrderedCall& call);
  bool begin_held();
  void find_due();
  void check_due();
  bool collect();
  void finish(Call call);
  bool publish_decision();
  void conclude(Call call, const Status& outcome);

  Communicator& comm_;
  const std::string group_;
  const Config& config_;
  const FailureDecisions& decisions_;
  LaunchOrder& launch_order_;
  const std::shared_ptr<GroupMetrics> metrics_;

  std::deque<Call> held_;         // collectives that wait for their turn at a device
  std::deque<Call> collectives_;  // in flight; the communicator runs them one after the other
  std::vector<Call> messages_;    // in flight, in the order of submission
  std::vector<Call> done_;        // reused by collect()
  bool has_fresh_ = false;        // calls were started since the last progress()
  Deadline limit_ = Deadline::never();
  Deadline due_ = Deadline::never();  // when the first call in flight is late, or limit_
  uint32_t rounds_ = 0;

  std::deque<Call> failed_;  // wait for the decision on this communicator
  Status unsent_report_;     // until take_failure_report()
  bool is_reported_ = false;
  Deadline decision_due_ = Deadline::never();
  Status ended_by_;  // the published decision; OK before
  Status ended_;     // set by end()
};

}  // namespace fdl
