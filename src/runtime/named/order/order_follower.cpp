// OrderFollower drives the LockedOrder that `submissions` owns.
#include "runtime/named/order/order_follower.h"

#include <fmt/format.h>

#include "base/log.h"

namespace fdl {
namespace {

constexpr std::string_view kSharedDevice = "another group of this rank uses its device too";

}  // namespace

OrderFollower::OrderFollower(Communicator& comm, const Config& config, Submissions<Entry>& submissions,
                             PlanExchange& exchange, PendingBuckets& pending, OperationsInFlight& operations)
    : comm_(comm),
      submissions_(submissions),
      exchange_(exchange),
      pending_(pending),
      operations_(operations),
      readiness_(comm),
      optimistic_(!readiness_.available()),
      timeout_(config) {}

void OrderFollower::lock(Plan&& plan) {
  log_debug("{}: the order of {} buckets is locked after {} messages", comm_.id(), plan.locked.size(),
            exchange_.messages_sent());
  if (plan.cut && plan.rounds == 0) {
    log_info("{}: the order has buckets of up to {} bytes, and tensors above {} bytes run alone", comm_.id(),
             plan.cut->bucket_bytes, plan.cut->alone_bytes);
  }
  ++epochs_;
  submissions_.lock(
      std::move(plan.locked), [this](const std::string& name) { return exchange_.cached(name); }, optimistic_,
      plan.rounds);
  if (Trace* trace = operations_.telemetry().trace(); trace != nullptr) trace->locked(*submissions_.order());
  if (leaving_group_) submissions_.leave("this rank leaves the group");
  if (refuses_orders_) submissions_.leave(kSharedDevice);
  publish();
}

bool OrderFollower::follow() {
  const LockedOrder* order = submissions_.order();
  if (order == nullptr || (!order->optimistic() && !readiness_.available())) return false;
  bool moved = false;
  if (!order->optimistic()) {
    moved = readiness_.read(submissions_, operations_.telemetry().trace());
    while (begin_next()) moved = true;
  }
  if (exchange_.is_root() && order->is_complete()) {
    const bool concluded = submissions_.conclude();
    FDL_CHECK(concluded);
  }
  if (order->left()) {
    end();
    return true;
  }
  if (!order->optimistic()) readiness_.watch(*order);
  return leave_if_nothing_moves() || moved;
}

void OrderFollower::prepare_to_leave() {
  leaving_group_ = true;
  leave("this rank leaves the group");
}

void OrderFollower::refuse_orders() {
  refuses_orders_ = true;
  leave(kSharedDevice);
}

// In an optimistic order other ranks may wait for this rank until the root has sent the final counts.
bool OrderFollower::is_leaving(bool plans_have_ended) const {
  const LockedOrder* order = submissions_.order();
  if (order == nullptr || !order->frozen()) return false;
  return order->optimistic() ? !plans_have_ended : order->waiting() > 0;
}

bool OrderFollower::begin_optimistically() {
  const LockedOrder* order = submissions_.order();
  return order != nullptr && order->optimistic() && begin_next();
}

// Appends the next position if it may run now. Returns whether it did.
bool OrderFollower::begin_next() {
  auto begun = submissions_.begin();
  if (!begun) return false;
  const PlannedBucket& appended = pending_.append(std::move(*begun));
  Trace* trace = operations_.telemetry().trace();
  if (trace == nullptr) return true;
  const LockedOrder* order = submissions_.order();
  const uint64_t position = order->begun() - 1;
  if (position % order->buckets().size() == 0) trace->cycle();
  trace->begun(position);
  operations_.telemetry().decided(appended);
  return true;
}

void OrderFollower::leave(std::string_view why) {
  submissions_.leave(why);
  publish();
}

bool OrderFollower::leave_if_nothing_moves() {
  const LockedOrder& order = *submissions_.order();
  if (!timeout_.passed(order, operations_.submitted() + order.begun() + operations_.completed())) return false;
  leave(order.waits_for_others() ? "other ranks did not submit in time"
                                 : "a tensor waits for one that was not submitted");
  return true;
}

// Requires that no position of the order can begin any more. The entries in its places are sent to the root again.
void OrderFollower::end() {
  const uint64_t rounds = rounds_of_present();
  log_debug("{}: the locked order is left after {} rounds: {}", comm_.id(), rounds, submissions_.reason());
  if (Trace* trace = operations_.telemetry().trace(); trace != nullptr) trace->left(rounds, submissions_.reason());
  exchange_.left_order(rounds, submissions_.order()->concluded());
  abandon();
  const bool ended = submissions_.finish_leaving();
  FDL_CHECK(ended);
}

void OrderFollower::abandon() {
  if (submissions_.order() == nullptr) return;
  rounds_of_left_ += rounds_of_present();
  timeout_.stop();
  readiness_.stop_watching();
}

std::string OrderFollower::describe() const {
  const LockedOrder* order = submissions_.order();
  if (order == nullptr) {
    const std::string_view before = submissions_.reason();
    if (before.empty()) return "no order is locked";
    return fmt::format("no order is locked, the last one was left: {}", before);
  }
  std::string text = fmt::format("locked order {} of {} bucket{}, in round {}", epochs_, order->buckets().size(),
                                 order->buckets().size() == 1 ? "" : "s", rounds_of_present() + 1);
  if (order->frozen()) return fmt::format("{}; it is being left: {}", text, submissions_.reason());
  if (order->waits_for_others()) text += "; this rank is ready, others are not";
  if (order->waiting() > 0 && !order->waits_for_others()) text += "; tensors wait for others of this rank";
  return text;
}

// Counts the complete rounds that have begun.
uint64_t OrderFollower::rounds_of_present() const {
  const LockedOrder* order = submissions_.order();
  return order == nullptr ? 0 : order->begun() / order->buckets().size();
}

}  // namespace fdl
