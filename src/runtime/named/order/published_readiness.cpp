// PublishedReadiness writes and reads one word for each rank.
#include "runtime/named/order/published_readiness.h"

namespace fdl {

void PublishedReadiness::publish(const LockedOrder* order) {
  ReadinessFlags* flags = comm_.readiness_flags();
  if (order == nullptr || flags == nullptr || order->word() == published_) return;
  published_ = order->word();
  flags->publish(published_);
}

bool PublishedReadiness::read(Submissions<Entry>& submissions, Trace* trace) {
  const LockedOrder& order = *submissions.order();
  publish(&order);
  const ReadinessFlags& flags = *comm_.readiness_flags();
  submissions.read_words([&flags](int rank) { return flags.word_of(rank); });
  const bool changed = order.word() != published_;
  publish(&order);
  if (trace != nullptr) trace->readiness(order, flags, comm_.size());
  return changed;
}

// The mask has 64 bits: shared memory has at most kMaxShmRanks (64) ranks.
void PublishedReadiness::watch(const LockedOrder& order) {
  ReadinessFlags& flags = *comm_.readiness_flags();
  uint64_t behind = 0;
  for (int rank = 0; order.waits_for_others() && rank < comm_.size(); ++rank) {
    if (order.is_behind(flags.word_of(rank))) behind |= uint64_t{1} << rank;
  }
  flags.watch(behind);
}

void PublishedReadiness::stop_watching() {
  if (ReadinessFlags* flags = comm_.readiness_flags(); flags != nullptr) flags->watch(0);
}

}  // namespace fdl
