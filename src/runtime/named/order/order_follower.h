// OrderFollower follows the locked order of a group on this rank: it appends the positions that may run to the pending
// buckets, and leaves the order when it no longer fits (agree/order/locked_order.h describes the protocol).
//
// If all ranks share memory, a position may run when the readiness flags show that all ranks are ready for it; follow()
// then appends all such positions. Otherwise the order is optimistic: the executor requests one position at a time by
// begin_optimistically(), when the one before has finished on this rank.
//
// While no order is locked, every function except lock() does nothing. After each function, this rank's word in the
// readiness flags is the word of the order. Only the thread that owns progress calls this class.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/named/operations_in_flight.h"
#include "runtime/named/order/order_timeout.h"
#include "runtime/named/order/published_readiness.h"
#include "runtime/named/pending_buckets.h"
#include "runtime/named/plan_exchange.h"

namespace fdl {

class OrderFollower {
 public:
  // All references outlive this object.
  OrderFollower(Communicator& comm, const Config& config, Submissions<Entry>& submissions, PlanExchange& exchange,
                PendingBuckets& pending, OperationsInFlight& operations);

  // Follows the order of the plan from now on, after all buckets of earlier plans. Entries that wait move into their
  // places.
  void lock(Plan&& plan);
  // Call after `submissions` has changed outside of this class.
  void publish() { readiness_.publish(submissions_.order()); }
  // Appends the positions that may run, and ends an order that has been left. Returns whether anything moved.
  bool follow();
  // The clock time in ns at which follow() must be called even if nothing arrives. INT64_MAX: never.
  int64_t next_alarm_ns() const { return timeout_.next_alarm_ns(); }
  // Call before this rank leaves the group: it leaves this order and all later ones at once, so that it promises no
  // further position.
  void prepare_to_leave();
  // Leaves this order and all later ones at once, until take_orders(): how the ranks launch is about to change.
  void refuse_orders();
  void take_orders() { refuses_orders_ = false; }
  // Whether follow() would end the order.
  bool may_end() const {
    const LockedOrder* order = submissions_.order();
    return order != nullptr && (order->left() || (exchange_.is_root() && order->is_complete()));
  }
  // Whether positions of an order that is being left may still have to run.
  bool is_leaving(bool plans_have_ended) const;

  // ---- an optimistic order ----
  // Appends the next position, if it may begin. Returns whether it did.
  bool begin_optimistically();
  // What becomes of the position that was begun last and has not finished.
  LockedOrder::Fate fate() const { return submissions_.order()->fate(); }
  // That position has finished.
  void finish_position() { submissions_.finish(); }
  // The last bucket of a round of the order with this number (PlannedBucket::ends_round) has ended.
  void finish_round(uint32_t order) {
    if (order != 0 && order == submissions_.epochs()) exchange_.finish_round();
  }
  // The entries of a position that was dropped are negotiated again.
  void take_back(Entries entries) { submissions_.take_back(std::move(entries)); }

  // "locked order 2 of 5 buckets, in round 13", and what it waits for; for users who look for the cause of a hang.
  std::string describe() const;
  // How often an order was locked, and how many rounds of locked orders have begun on this rank.
  uint64_t epochs() const { return epochs_; }
  uint64_t rounds() const { return rounds_of_left_ + rounds_of_present(); }
  // The caller drops the order. Its rounds stay counted.
  void abandon();

 private:
  bool begin_next();
  void leave(std::string_view why);
  bool leave_if_nothing_moves();
  void end();
  uint64_t rounds_of_present() const;

  Communicator& comm_;
  Submissions<Entry>& submissions_;
  PlanExchange& exchange_;
  PendingBuckets& pending_;
  OperationsInFlight& operations_;
  PublishedReadiness readiness_;
  bool optimistic_;  // decided once, as on the root: the flags disappear when the communicator fails
  OrderTimeout timeout_;
  bool leaving_group_ = false;
  bool refuses_orders_ = false;
  uint64_t epochs_ = 0;
  uint64_t rounds_of_left_ = 0;  // of orders that were left
};

}  // namespace fdl
