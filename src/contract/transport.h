// Transport: moves slices between this rank and its peers. One thread drives it; no call blocks, allocates or locks.
//
// On a lane, the k-th send meets the peer's k-th receive; their sizes and tags are equal, else the transport fails for
// that peer with an error that tells both. Between lanes nothing is promised. Zero-length slices are slices.
// Bytes given to send() or recv() belong to the transport until done() says so.
// An error is final for that peer, and names it. Lanes of other peers go on.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "contract/waitable.h"

namespace fdl {

// One ordered stream in each direction between this rank and `peer` (rank in the communicator, never this one).
// Lane 0 carries collectives, lane 1 point-to-point messages. A transport has kChannelCount lanes a peer.
struct Channel {
  int peer = 0;
  int index = 0;
};
inline constexpr int kChannelCount = 2;

// What is handed out on a lane in one direction is finished in the same order, so a ticket is a position and done()
// one comparison; it may be asked any number of times.
struct Ticket {
  uint32_t stream = 0;
  uint64_t position = 0;
};

class Transport : public Waitable {
 public:
  virtual std::string_view name() const = 0;  // "tcp"

  // No ticket: there is no room now ("would block"); call progress() and try again. Every transport accepts at least
  // 16 outstanding slices a lane and direction. `tag` says what the slice is; the receiver's must be the same.
  virtual std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) = 0;
  virtual std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) = 0;
  virtual bool done(Ticket ticket) const = 0;

  // Moves what can be moved. Returns true if anything moved or any peer's state changed.
  virtual bool progress() = 0;

  // OK, or the first final error of that peer's lanes.
  virtual Status peer_status(int peer) const = 0;
  // OK, or why no ticket of this lane is ever done again, and sends and recvs are refused. A peer that left in good
  // order while one lane still wanted something of it ends that lane alone: what it had sent on the others still
  // arrives.
  virtual Status channel_status(Channel channel) const { return peer_status(channel.peer); }
  // Seconds there and back, as seen when the connection was made; 0 where that is not known or is within this host.
  virtual double round_trip_s(int) const { return 0; }
  // The first error of any peer, by rank; OK when all are well.
  virtual Status status() const = 0;
};

}  // namespace fdl
