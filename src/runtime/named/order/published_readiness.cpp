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
  submissions.read_words([&](int rank) { return read_[static_cast<std::size_t>(rank)] = flags.word_of(rank); });
  const bool changed = order.word() != published_;
  publish(&order);
  if (trace != nullptr) trace->readiness(order, flags, comm_.size());
  return changed;
}

// The mask has 64 bits: shared memory has at most kMaxShmRanks (64) ranks. It is made of the words that the order has
// read. A word that has changed since then is news to the order, so its rank must be in the mask: the flags refuse to
// sleep when the word of a rank in the mask has changed.
void PublishedReadiness::watch(const LockedOrder& order) {
  uint64_t behind = 0;
  for (std::size_t rank = 0; order.waits_for_others() && rank < read_.size(); ++rank) {
    if (order.is_behind(read_[rank])) behind |= uint64_t{1} << rank;
  }
  comm_.readiness_flags()->watch(behind);
}

void PublishedReadiness::stop_watching() {
  if (ReadinessFlags* flags = comm_.readiness_flags(); flags != nullptr) flags->watch(0);
}

}  // namespace fdl
