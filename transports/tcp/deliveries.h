// Deliveries finds that data which a peer has sent does not arrive, although its connection is sound.
//
// What lies between two hosts may end connections itself, as a relay or a proxy does: it acknowledges data to the
// sender also if it never passes it on, so that the kernels of both hosts see nothing wrong. Therefore a rank that has
// received nothing for a while asks the peer, by the coordinator, how many slices it has sent. Bytes of a slice that
// was sent keep arriving until it is complete; if none do for long, they are withheld.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "base/mutex.h"
#include "contract/slice_wait.h"
#include "contract/transport.h"

namespace fdl {

class Deliveries {
 public:
  // An outage of `lost_after_s` is survived: until the kernel's next retransmission it may take twice as long.
  explicit Deliveries(double lost_after_s) : lost_after_s_(lost_after_s) {}

  // For that long nothing has to arrive before a peer is asked.
  bool is_doubtful(int64_t quiet_ns) const;
  double limit_s() const { return 2 * lost_after_s_; }

  // From any thread.
  void note_sent_by(int peer, const SliceCounts& sent);

  // Call it from time to time while receives of a channel wait. `received`: slices that have arrived; `quiet_ns`: how
  // long ago the last bytes did. Time in which this process did not run counts as one second at most.
  bool is_overdue(Channel channel, uint64_t received, int64_t quiet_ns, int64_t now_ns);

 private:
  struct Wait {
    uint64_t sent = 0;  // by the peer, as far as it has told
    SliceWait slice;
  };

  const double lost_after_s_;
  Mutex mutex_;
  std::map<std::tuple<int, int>, Wait> waits_ FDL_GUARDED_BY(mutex_);  // by peer and index of the channel
};

}  // namespace fdl
