// This file implements how NamedOperations follows a locked order: it publishes this rank's progress, reads that of the
// other ranks, and begins the positions that all ranks are ready for.
#include <algorithm>
#include <limits>

#include "base/log.h"
#include "runtime/named/named_operations.h"

namespace fdl {
namespace {

// How long (ns) a tensor may wait for other ranks before it is negotiated again, so that the root can report the
// missing ranks. It is a quarter of the smaller stall limit, because the root's limit begins only when it has the
// request.
int64_t wait_limit(const Config& config) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  for (const double seconds : {config.stall_warning_s, config.stall_shutdown_s}) {
    if (seconds > 0) limit = std::min(limit, seconds_to_ns(seconds) / 4);
  }
  return limit;
}

}  // namespace

// Follows `buckets` from now on, after all buckets of earlier plans. Entries that wait move into their places.
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
  if (leaving_) submissions_.leave("this rank leaves the group");
  publish();
}

// The number of complete rounds that have begun in the present order.
uint64_t NamedOperations::rounds() const {
  const LockedOrder* order = submissions_.order();
  return order == nullptr ? 0 : order->begun() / order->buckets().size();
}

// Call after everything that may change this rank's word. In an optimistic order there are no flags.
void NamedOperations::publish() {
  const LockedOrder* order = submissions_.order();
  ReadinessFlags* readiness_flags = comm_.readiness_flags();
  if (order == nullptr || readiness_flags == nullptr || order->word() == published_) return;
  published_ = order->word();
  readiness_flags->publish(published_);
}

// Begins the positions that all ranks are ready for. Returns whether anything moved. In an optimistic order run()
// begins them instead, one at a time.
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
  return give_up_waiting() || moved;
}

// Returns whether the words of the other ranks changed this rank's own word: it freezes when another rank has frozen.
// Its own word is published first, because look() counts only what other ranks can read.
bool NamedOperations::read_readiness_flags(const LockedOrder& order) {
  publish();
  const ReadinessFlags& readiness_flags = *comm_.readiness_flags();
  submissions_.look([&readiness_flags](int rank) { return readiness_flags.word_of(rank); });
  const bool changed = order.word() != published_;
  publish();
  if (trace_) trace_->look(order, readiness_flags, comm_.size());
  return changed;
}

// Makes the ranks that keep the next position from beginning wake this rank. The mask has 64 bits: shared memory has at
// most kMaxShmRanks (64) ranks.
void NamedOperations::watch_readiness_flags(const LockedOrder& order) {
  ReadinessFlags& readiness_flags = *comm_.readiness_flags();
  uint64_t behind = 0;
  for (int rank = 0; order.waits_for_others() && rank < comm_.size(); ++rank) {
    if (order.is_behind(readiness_flags.word_of(rank))) behind |= uint64_t{1} << rank;
  }
  readiness_flags.watch(behind);
}

// Moves the next position of the locked order to todo_ if it may run now. Returns whether it did.
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

// Requires that no position of the order can begin any more. What waits in its places is sent to the root again.
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

// Leaves the order if nothing moves for too long, so that the waiting tensors are negotiated again. A tensor that waits
// for another one of this rank may then run alone. For a tensor that waits for other ranks, the root reports which
// ranks are missing.
bool NamedOperations::give_up_waiting() {
  const LockedOrder* order = submissions_.order();
  if (order->frozen() || (order->waiting() == 0 && !order->waits_for_others())) {
    timeout_ = Deadline::never();
    return false;
  }
  const uint64_t moves = submitted_ + order->begun() + completed_;
  if (moves != seen_moves_ || timeout_.is_never()) {
    seen_moves_ = moves;
    const int64_t limit = order->waits_for_others() ? wait_limit(config_) : seconds_to_ns(config_.lock_patience_s);
    if (limit != std::numeric_limits<int64_t>::max()) timeout_ = Deadline::after_ns(limit);
  }
  if (!timeout_.passed()) return false;
  submissions_.leave(order->waits_for_others() ? "other ranks did not submit in time"
                                               : "a tensor waits for one that was not submitted");
  publish();
  return true;
}

}  // namespace fdl
