// Transport moves slices between this rank and its peers. One thread drives it; no call blocks, allocates or locks.
//
// On a channel, the k-th send matches the peer's k-th receive. Their sizes and tags must be equal; otherwise the
// transport fails for that peer with an error that names both. There is no order between channels. A slice may be
// empty.
// The transport owns the bytes passed to send() or recv() until done() returns true.
// An error names its peer and is final for it. The channels of other peers continue.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "contract/waitable.h"

namespace fdl {

// One ordered stream in each direction between this rank and `peer` (rank in the communicator, never this one).
// Channel 0 carries collectives, channel 1 point-to-point messages. A transport has kChannelCount channels per peer.
struct Channel {
  int peer = 0;
  int index = 0;
};
inline constexpr int kChannelCount = 2;
// Numbers of slices, by channel.
using SliceCounts = std::array<uint64_t, kChannelCount>;

// Identifies one slice in flight. Slices of one channel and direction finish in order, so a ticket is a position and
// done() is one comparison. done() may be called any number of times for a ticket.
struct Ticket {
  uint32_t stream = 0;
  uint64_t position = 0;
};

class Transport : public Waitable {
 public:
  virtual std::string_view name() const = 0;  // "tcp"

  // No ticket means that no buffer is free now ("would block"); call progress() and try again. Every transport accepts
  // at least 16 outstanding slices per channel and direction. The receiver must pass the same `tag`.
  virtual std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) = 0;
  virtual std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) = 0;
  virtual bool done(Ticket ticket) const = 0;

  // Announces memory of the library in which slices will be. A transport whose network needs registered memory
  // registers it once, instead of for each slice, and shares its ownership meanwhile; the others do nothing.
  virtual void keep(const std::shared_ptr<void>& /*memory*/, std::size_t /*bytes*/) {}

  // The caller has waited for a while, and nothing has moved. Fails peers whose host has not acknowledged for
  // lost_after_s what was sent to it, or whose slices do not arrive, where the transport can detect that. Returns the
  // error of the first such peer: this rank may wait for others only, while that peer waits for what was sent.
  virtual Status check_connections() { return {}; }
  // The peers that this rank waits for, if the transport doubts that what they have sent arrives. The caller asks them
  // how much that is, and passes their answers to note_sent_by(). Transports inside a host have no doubts.
  virtual std::vector<int> awaited_peers() const { return {}; }
  // From any thread, one at a time: how many slices this rank has sent to the peer, and the peer to this rank.
  virtual SliceCounts sent_to(int /*peer*/) { return {}; }
  virtual void note_sent_by(int /*peer*/, const SliceCounts& /*sent*/) {}

  // Moves data without blocking. Returns true if anything moved or any peer's state changed.
  virtual bool progress() = 0;

  // Returns OK, or the first final error of that peer's channels.
  virtual Status peer_status(int peer) const = 0;
  // Returns OK, or the error after which no ticket of this channel is ever done and send() and recv() are refused. If a
  // peer leaves in good order while one channel still waits for it, only that channel ends: slices that it had sent on
  // the others still arrive.
  virtual Status channel_status(Channel channel) const { return peer_status(channel.peer); }
  // Returns the round-trip time in seconds, measured when the connection was made; 0 if unknown or within this host.
  virtual double round_trip_s(int) const { return 0; }
  // Returns the error of the lowest-ranked peer that has one, else OK.
  virtual Status status() const = 0;
};

}  // namespace fdl
