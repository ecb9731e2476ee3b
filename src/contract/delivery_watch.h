// DeliveryWatch finds that slices which a peer has sent do not arrive, for a transport over a library that does not
// show the state of its connections.
//
// Such a library connects again after a break, without what was in flight, and repeats for a long time what a cut
// network drops; it reports no error in either case. Therefore the ranks tell each other how many slices they have
// sent, by the coordinator. A slice that was sent and is awaited arrives soon, however slow the peer's program is.
// While no thread drives the peer's transport, only those slices count as sent that the network has.
#pragma once

#include <atomic>
#include <limits>
#include <optional>
#include <vector>

#include "contract/slice_ledger.h"
#include "contract/slice_wait.h"

namespace fdl {

class DeliveryWatch {
 public:
  // What a rank that has ended the communicator has sent: nothing that has not arrived will come.
  static constexpr uint64_t kEnded = std::numeric_limits<uint64_t>::max();

  struct Overdue {
    int peer;
    Status why;
  };

  // The ledger outlives this object. An outage of `lost_after_s` is survived: until the network's next repetition it
  // may take twice as long.
  DeliveryWatch(const SliceLedger& ledger, double lost_after_s);

  // ---- from any thread, one at a time ----
  SliceCounts sent_to(int peer, int64_t now_ns);
  void note_sent_by(int peer, const SliceCounts& sent);

  // ---- the driving thread ----
  // A slice of so many bytes was posted in the stream, and is counted in the ledger.
  void note_posted(std::size_t stream, std::size_t bytes);
  // The transport was driven; `stream` may have finished slices.
  void note_driven() { rounds_.store(rounds_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void note_progress(std::size_t stream) {
    if (!SliceLedger::is_outgoing(stream)) return;
    finished_[index(SliceLedger::channel_of(stream))].store(ledger_[stream].finished, std::memory_order_relaxed);
  }
  // Peers for whose slices receives wait.
  std::vector<int> awaited_peers() const;
  // Call it from time to time while nothing moves. Time in which this process did not run counts as one second at most.
  std::optional<Overdue> find_overdue(int64_t now_ns);

 private:
  struct Wait {
    SliceWait slice;
    std::size_t longest = 0;  // bytes of the longest slice so far
  };

  static std::size_t index(Channel channel) {
    return static_cast<std::size_t>(channel.peer * kChannelCount + channel.index);
  }
  bool has_sent(Channel channel, uint64_t position) const;
  bool is_overdue(Channel channel, int64_t now_ns);

  const SliceLedger& ledger_;
  const double limit_s_;
  std::vector<std::atomic<uint64_t>> posted_;    // slices for peers, by channel
  std::vector<std::atomic<uint64_t>> finished_;  // those that the network has
  std::vector<std::atomic<uint64_t>> sent_by_;
  std::vector<Wait> waits_;
  std::atomic<uint64_t> rounds_{0};
  uint64_t seen_rounds_ = 0;  // by sent_to()
  int64_t seen_ns_ = 0;       // when they had changed
};

}  // namespace fdl
