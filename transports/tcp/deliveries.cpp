// Deliveries compares counts and times alone: it sends nothing itself.
#include "transports/tcp/deliveries.h"

namespace fdl {

bool Deliveries::is_doubtful(int64_t quiet_ns) const { return quiet_ns >= seconds_to_ns(lost_after_s_) / 2; }

void Deliveries::note_sent_by(int peer, const SliceCounts& sent) {
  MutexLock lock(mutex_);
  for (int i = 0; i < kChannelCount; ++i) waits_[{peer, i}].sent = sent[static_cast<std::size_t>(i)];
}

bool Deliveries::is_overdue(Channel channel, uint64_t received, int64_t quiet_ns, int64_t now_ns) {
  MutexLock lock(mutex_);
  const auto found = waits_.find({channel.peer, channel.index});
  if (found == waits_.end()) return false;  // never asked
  Wait& wait = found->second;
  const bool was_sent = wait.sent > received;
  if (!was_sent || quiet_ns < wait.slice.since_measured_ns(now_ns)) wait.slice.end();
  return was_sent && wait.slice.measure(received, now_ns) >= seconds_to_ns(limit_s());
}

}  // namespace fdl
