// PlanExchange negotiates with the root of a group: it sends this rank's requests to the root, receives the plans of
// the root and checks them. On the root it also makes the plans. Messages travel along the group's tree
// (agree/session/agreement_tree.h), whose inner ranks pass on those of the ranks below them.
//
// The root passes each message to its session and decides later, once for all messages that have arrived. Its plan goes
// to all ranks, itself included, so all ranks process the same plans in the same order. A message that does not decode
// or does not fit the group ends the group, because the states of the ranks then differ.
//
// An empty message down the tree means that no further plan will come: a rank above has left or was lost.
//
// Only the thread that owns progress calls this class.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agree/session/agreement_tree.h"
#include "agree/session/relay_session.h"
#include "agree/session/session.h"
#include "base/config.h"
#include "engine/communicator.h"
#include "runtime/named/control_channel.h"
#include "runtime/named/entry.h"
#include "runtime/named/named_telemetry.h"
#include "runtime/named/order/tuning_report.h"

namespace fdl {

class PlanExchange {
 public:
  // Receives what a call of progress() finds. A function must not call the exchange, except for the constant ones.
  class Receiver {
   public:
    // Each bucket fits a group of this size.
    virtual void take_plan(Plan&& plan) = 0;
    // The group must fail with `why`.
    virtual void fail_exchange(const Status& why) = 0;
    // No further message of a peer can arrive.
    virtual void end_peer(int peer, const Status& why) = 0;
    // No further plan can arrive. `all_came`: the root has left in good order, behind its last plan. Otherwise other
    // ranks may have received more plans. On all ranks but the root, perhaps repeatedly.
    virtual void end_plans(bool all_came) = 0;
    // Operations wait for ranks; on the root only.
    virtual void report_stall(const Stall& stall) = 0;

   protected:
    ~Receiver() = default;
  };

  // `tuning`: how the cut of locked orders is tuned, and where the result goes; see tuning_report.h.
  PlanExchange(Communicator& comm, const Config& config, OrderTuning tuning, NamedTelemetry& telemetry,
               Receiver& receiver);

  // Sends the requests of `submissions`, receives messages and makes a plan (root only). Returns whether anything
  // moved. `backlog_bytes`: the size of the buckets that were agreed on and have not begun on this rank.
  bool progress(Submissions<Entry>& submissions, std::size_t backlog_bytes);
  // The clock time in ns at which the root must warn of a stall. INT64_MAX: never.
  int64_t next_alarm_ns() const;

  // On the root: a rank has left in good order; this rank has left a locked order after so many rounds, `completed` if
  // these are all its rounds; the last bucket of a round has ended. Other ranks have nothing to record.
  void depart(int rank);
  void left_order(uint64_t rounds, bool completed);
  void finish_round();
  // This rank leaves the group: tells the ranks that get their plans from it that none follows.
  void leave();
  bool is_root() const { return root_ != nullptr; }
  // Whether that rank of the group is the root or passes on its plans to this one.
  bool plans_come_through(int rank) const { return tree_.has_ancestor(rank); }
  // Another group of this rank uses its device too: the next message says so to the root, which makes a plan that takes
  // turns.
  void announce_shared_device() { announces_shared_device_ = true; }
  // Whether the root has something to decide.
  bool has_input() const { return root_has_input_; }
  // Records each arriving request in the telemetry's trace, if there is one. Call after the trace has changed.
  void update_trace();

  // The request that all ranks cache under this name, or null.
  const Request* cached(const std::string& name) const { return member_.cached(name); }
  // On the root: the first `most` names that are not decided yet, and their number; else nothing.
  std::vector<Stall> waiting(std::size_t most) const;
  std::size_t waiting_count() const { return root_ ? root_->pending() : 0; }
  uint64_t messages_sent() const { return channel_.messages_sent(); }

 private:
  bool send(Submissions<Entry>& submissions);
  bool receive();
  bool decide(std::size_t backlog_bytes);
  void take_message(int peer, ConstBytes bytes);
  void take_requests(int child, ConstBytes bytes);
  void reject(int sender, const Status& why);
  void pass_on_requests();
  void pass_on_plan(ConstBytes bytes);
  void end_plans(bool all_came);
  void take_plan(ConstBytes bytes);
  void warn_of_stalls();

  Communicator& comm_;
  NamedTelemetry& telemetry_;
  Receiver& receiver_;
  const AgreementTree tree_;
  ControlChannel channel_;
  MemberSession member_;
  std::unique_ptr<RootSession> root_;  // null on the other ranks
  std::optional<RelaySession> relay_;  // of an inner rank of the tree
  TuningReport tuning_report_;
  bool announces_shared_device_ = false;
  bool root_has_input_ = false;  // a message or a departure since the last plan may have made buckets ready
};

}  // namespace fdl
