// Deliveries compares counts and times alone: it sends nothing itself.
#include "transports/tcp/deliveries.h"

#include <algorithm>

namespace fdl {

bool Deliveries::is_doubtful(int64_t quiet_ns) const { return quiet_ns >= seconds_to_ns(lost_after_s_) / 2; }

void Deliveries::note_sent_by(int peer, const SliceCounts& sent) {
  MutexLock lock(mutex_);
  for (int i = 0; i < kChannelCount; ++i) waits_[{peer, i}].sent = sent[static_cast<std::size_t>(i)];
}

bool Deliveries::is_overdue(Channel channel, uint64_t received, int64_t quiet_ns, int64_t now_ns) {
  constexpr int64_t kLongestStep_ns = 1'000'000'000;
  MutexLock lock(mutex_);
  const auto found = waits_.find({channel.peer, channel.index});
  if (found == waits_.end()) return false;  // never asked
  Wait& wait = found->second;
  if (wait.sent <= received) {
    wait.checked_ns = 0;
    return false;
  }
  if (wait.checked_ns == 0 || wait.received != received || quiet_ns < now_ns - wait.checked_ns) {
    wait.received = received;
    wait.waited_ns = 0;
    wait.checked_ns = now_ns;
  }
  wait.waited_ns += std::min(now_ns - wait.checked_ns, kLongestStep_ns);
  wait.checked_ns = now_ns;
  return wait.waited_ns >= seconds_to_ns(limit_s());
}

}  // namespace fdl
