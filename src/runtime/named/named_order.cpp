// NamedOperations follows the locked order: it publishes this rank's progress, reads that of the others, and begins the
// positions that all ranks are ready for.
#include <algorithm>
#include <limits>

#include "base/log.h"
#include "runtime/named/named_operations.h"

namespace fdl {
namespace {

// After how long a tensor that waits for other ranks is negotiated again, so that the root can say who is missing.
int64_t patience_with_others(const Config& config) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  for (const double seconds : {config.stall_warning_s, config.stall_shutdown_s}) {
    if (seconds > 0) limit = std::min(limit, seconds_to_ns(seconds) / 4);
  }
  return limit;
}

}  // namespace

void NamedOperations::lock_order(std::vector<Bucket> buckets) {
  for (const Bucket& bucket : buckets) {
    Status sound = check(bucket);
    if (!sound.ok()) return fail_all(sound);
  }
  log_debug("{}: the order of {} buckets is locked after {} messages", comm_.id(), buckets.size(), control_messages());
  ++lock_epochs_;
  submissions_.lock(
      std::move(buckets), [this](const std::string& name) { return member_.known(name); },
      comm_.readiness_flags() == nullptr);
  if (trace_) trace_->locked(*submissions_.order());
  if (leaves_) submissions_.leave("this rank leaves the group");
  publish();
}

uint64_t NamedOperations::rounds() const {
  const LockedOrder* order = submissions_.order();
  return order == nullptr ? 0 : order->begun() / order->buckets().size();
}

void NamedOperations::publish() {
  const LockedOrder* order = submissions_.order();
  ReadinessFlags* readiness_flags = comm_.readiness_flags();
  if (order == nullptr || readiness_flags == nullptr || order->word() == published_) return;
  published_ = order->word();
  readiness_flags->publish(published_);
}

// Begins what all ranks are ready for; true if anything moved. (In a blind order run() begins it, when its turn comes.)
bool NamedOperations::follow_order() {
  const LockedOrder* order = submissions_.order();
  if (order == nullptr || (comm_.readiness_flags() == nullptr && !order->optimistic())) return false;
  bool moved = false;
  if (!order->optimistic()) {
    moved = read_readiness_flags(*order);
    while (begin_next()) moved = true;
  }
  if (order->left()) {
    end_order();
    return true;
  }
  if (!order->optimistic()) watch_readiness_flags(*order);
  return lose_patience() || moved;
}

// True if this rank's own word has changed by what it read.
bool NamedOperations::read_readiness_flags(const LockedOrder& order) {
  publish();
  const ReadinessFlags& readiness_flags = *comm_.readiness_flags();
  submissions_.look([&readiness_flags](int rank) { return readiness_flags.word_of(rank); });
  const bool changed = order.word() != published_;
  publish();
  if (trace_) trace_->look(order, readiness_flags, comm_.size());
  return changed;
}

// Whoever is behind wakes this rank up.
void NamedOperations::watch_readiness_flags(const LockedOrder& order) {
  ReadinessFlags& readiness_flags = *comm_.readiness_flags();
  uint64_t behind = 0;
  for (int rank = 0; order.waits_for_others() && rank < comm_.size(); ++rank) {
    if (order.is_behind(readiness_flags.word_of(rank))) behind |= uint64_t{1} << rank;
  }
  readiness_flags.watch(behind);
}

// The next position of the locked order, if it must run now.
bool NamedOperations::begin_next() {
  auto begun = submissions_.begin();
  if (!begun) return false;
  todo_.push_back(std::move(*begun));
  if (!trace_) return true;
  const LockedOrder* order = submissions_.order();
  const uint64_t position = order->begun() - 1;
  if (position % order->buckets().size() == 0) trace_->cycle();
  trace_->begun(position);
  trace_decided(todo_.back());
  return true;
}

void NamedOperations::end_order() {
  log_debug("{}: the locked order is left after {} rounds: {}", comm_.id(), rounds(), submissions_.reason());
  if (trace_) trace_->left(rounds(), submissions_.reason());
  locked_steps_ += rounds();
  if (root_) root_->left_order(rounds());
  timeout_ = Deadline::never();
  if (ReadinessFlags* readiness_flags = comm_.readiness_flags(); readiness_flags != nullptr) readiness_flags->watch(0);
  const bool ended = submissions_.finish_leaving();
  FDL_CHECK(ended);
}

// What waits in vain is negotiated again: for another that this rank has not submitted, it might run alone; for other
// ranks, the root can tell who they are.
bool NamedOperations::lose_patience() {
  const LockedOrder* order = submissions_.order();
  if (order->frozen() || (order->waiting() == 0 && !order->waits_for_others())) {
    timeout_ = Deadline::never();
    return false;
  }
  const uint64_t moves = submitted_ + order->begun() + completed_;
  if (moves != seen_moves_ || timeout_.is_never()) {
    seen_moves_ = moves;
    const int64_t limit =
        order->waits_for_others() ? patience_with_others(config_) : seconds_to_ns(config_.lock_patience_s);
    if (limit != std::numeric_limits<int64_t>::max()) timeout_ = Deadline::after_ns(limit);
  }
  if (!timeout_.passed()) return false;
  submissions_.leave(order->waits_for_others() ? "others do not come" : "a tensor waits for one not submitted");
  publish();
  return true;
}

}  // namespace fdl
