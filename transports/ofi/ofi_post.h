// OfiPost makes the packets of one transport, and is where its two sides, OfiSender and OfiReceiver, report errors.
#pragma once

#include <vector>

#include "contract/slice_ledger.h"
#include "transports/ofi/ofi_link.h"

namespace fdl {

inline constexpr uint64_t kOfiDepth = 32;   // slices in flight of one channel and direction
inline constexpr uint64_t kOfiWindow = 16;  // eager slices that a peer may send ahead of the receives
// Positions that packets may name, from the first unfinished one on. A sender is at most kOfiWindow + kOfiDepth ahead.
inline constexpr uint64_t kOfiAhead = 64;
static_assert(kOfiWindow + kOfiDepth <= kOfiAhead);

class OfiPost {
 public:
  OfiPost(std::unique_ptr<OfiLink> given, const Membership& membership, const std::vector<bool>& peers);

  // Begins a packet with the counts of what this rank has received; null if there is none free now.
  OfiPacket* begin(OfiKind kind, Channel channel, OfiHead& head);
  void finish(OfiPacket* packet, const OfiHead& head, std::size_t payload, int peer);
  // The same, if the network takes the packet now; else it returns false and nothing has been sent.
  bool finish_now(OfiPacket* packet, const OfiHead& head, std::size_t payload, int peer);
  // Sends a packet without more than its kind. Returns false if there is none free now.
  bool tell(OfiKind kind, Channel channel);

  OfiSegments segments_of(std::size_t bytes) const { return {bytes, link->rails(), link->longest_write()}; }
  uint64_t session() const { return session_; }
  // The count of received slices of this stream that the peer has been told last.
  uint64_t told(std::size_t stream) const { return told_[stream]; }

  // Streams with something left to do.
  std::vector<std::size_t> active;
  void activate(std::size_t stream) {
    if (std::exchange(is_active_[stream], true)) return;
    active.push_back(stream);
  }
  // Removes active[i], whose place the last one takes.
  void deactivate(std::size_t i) {
    is_active_[active[i]] = false;
    active[i] = active.back();
    active.pop_back();
  }

  // Ends all channels of a peer. The transport then takes back the memory that the peer could write into.
  void fail(int peer, const Status& why) {
    if (ledger.fail(peer, why)) failed.push_back(peer);
  }
  // For a packet that names a slice which is not possible.
  void fail_for_order(std::size_t stream, const OfiHead& head);

  std::unique_ptr<OfiLink> link;
  SliceLedger ledger;
  std::vector<int> failed;  // peers whose failure the transport has not handled yet

 private:
  void note_told(int peer);

  uint64_t session_ = 0;
  std::vector<uint64_t> told_;   // by stream
  std::vector<char> is_active_;  // by stream
};

}  // namespace fdl
