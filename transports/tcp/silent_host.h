// SilentHost finds that the host at the other end of a connection acknowledges nothing any more.
//
// Both processes may run and reach the coordinator while the network between their hosts is cut. Data in flight would
// then wait for as long as the kernel repeats it, which is a quarter of an hour. A host acknowledges data also if its
// process is stopped or does not read, so this is no judgement about the process.
#pragma once

#include <cstdint>

#include "system/socket.h"

namespace fdl {

class SilentHost {
 public:
  // Call it from time to time while data waits. Returns whether data was sent again after a silence of `limit_ns`, and
  // that has had no answer either: an outage that is shorter may end between two retransmissions.
  bool is_silent_for(int64_t limit_ns, const Unacknowledged& seen, int64_t now_ns) {
    constexpr int64_t kAnswer_ns = 1'000'000'000;
    const bool is_overdue = seen.retransmissions > 0;
    if (!is_overdue || seen.last_ack_ns < now_ns - since_ns_) since_ns_ = last_try_ns_ = 0;
    if (!is_overdue) return false;
    if (since_ns_ == 0) since_ns_ = now_ns;
    const int64_t sent_ns = now_ns - seen.last_sent_ns;
    if (last_try_ns_ == 0 && sent_ns - since_ns_ >= limit_ns) last_try_ns_ = sent_ns;
    return last_try_ns_ != 0 && now_ns - last_try_ns_ >= kAnswer_ns;
  }

 private:
  int64_t since_ns_ = 0;     // the first call that found an acknowledgement overdue, after the last answer; 0: none is
  int64_t last_try_ns_ = 0;  // when data was sent again after the limit; 0: not yet
};

}  // namespace fdl
