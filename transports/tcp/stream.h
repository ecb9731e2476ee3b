// TcpStream is one connection with one peer, in both directions. It carries a channel alone, or is one of several that
// share the slices of a channel.
//
// A slice is a header and its bytes, or the part of them that this connection carries. All queued slices go out in one
// system call. Arriving bytes go straight into the posted buffers, with the headers between them: both ends know the
// sizes. An unexpected header ends the stream, so bytes that landed in a wrong buffer are never reported as received.
// Data without a posted receive stays in the kernel.
//
// On a protected stream a tag follows each header, and another one the bytes of each slice that has any. Received bytes
// count as received only after their tag was checked. Encrypted bytes are sent from a buffer of one burst, because the
// caller's bytes must stay as they are, and are decrypted in place.
//
//   plain        header 16            bytes
//   protected    header 16   tag 16   bytes   tag 16
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "contract/security.h"
#include "system/fd.h"
#include "system/seal.h"
#include "transports/tcp/silent_host.h"

namespace fdl {

// The header as it is on the wire, in the byte order of the machine. (farandole runs on little-endian machines only.)
struct SliceHeader {
  uint32_t tag = 0;
  uint32_t kind = 0;
  uint64_t bytes = 0;  // of the whole slice, of which this connection may carry a part: both ends cut it alike
};
static_assert(sizeof(SliceHeader) == 16);

// The seals of a protected stream, one for each direction.
struct StreamProtection {
  Security security = Security::integrity;
  Seal sends;
  Seal receives;
};

class TcpStream {
 public:
  static constexpr uint64_t kDepth = 64;  // outstanding slices in each direction

  enum class Outcome {
    nothing,   // the socket would block
    moved,     // bytes were transferred
    unread,    // peek(): unread data is waiting for a receive
    left,      // the peer ended its transport in order
    closed,    // the peer is gone
    broken,    // the connection failed: error_number()
    mismatch,  // the headers arrived() and expected() differ
    garbage,   // what arrived is no slice
    forged,    // what arrived is not what the peer sent
  };

  TcpStream() = default;
  // `protection` is null for a plain stream.
  explicit TcpStream(UniqueFd fd, std::unique_ptr<StreamProtection> protection = nullptr);

  // Gives a stream its connection. Slices may have been queued and posted before.
  void attach(UniqueFd fd, std::unique_ptr<StreamProtection> protection);
  int fd() const { return fd_.get(); }  // -1: there is no connection yet, or not any more
  void close() { fd_.reset(); }

  bool may_post_send() const { return queued_ - sent_ < kDepth; }
  bool may_post_recv() const { return posted_ - received_ < kDepth; }
  // Queues `part` of a slice of `slice_bytes` bytes. Requires may_post_send() or may_post_recv(). The part must stay
  // valid until it is done.
  void post_send(uint32_t tag, uint64_t slice_bytes, ConstBytes part);
  void post_recv(uint32_t tag, uint64_t slice_bytes, Bytes part);
  // Numbers of slices done since the beginning.
  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }
  bool has_received_anything() const { return received_ != 0 || front_received_ != 0; }
  bool sending() const { return sent_ != queued_; }
  bool receiving() const { return received_ != posted_; }

  // Each makes one system call that sends, or receives, as much as fits into a burst.
  Outcome push();
  Outcome pull();
  // Determines what a hang-up means while no receive is posted. Consumes nothing.
  Outcome peek();
  // Notifies the peer that this end leaves in order, unless a slice is half sent, and closes the connection. Bytes that
  // the kernel has accepted still arrive.
  void leave();

  int error_number() const { return error_number_; }
  const SliceHeader& arrived() const { return arrived_; }
  const SliceHeader& expected() const { return expected_; }

  // The events that the poller watches for on this stream.
  struct Watch {
    bool read = false;
    bool write = false;
    bool hang_up = false;
    bool operator==(const Watch&) const = default;
  };
  Watch watch;
  bool watches_early = false;  // watch for reading even while no receive is posted
  bool in_poller = false;
  bool hung_up = false;  // the poller has reported a hang-up and need not report it again
  bool peer_left = false;
  bool was_accepted = false;  // at its first use: the peer has called, and may not know that its call was taken
  SilentHost host;

 private:
  // A header as it travels; a plain one without the tag.
  struct Head {
    SliceHeader header;
    Tag tag{};
  };
  static_assert(sizeof(Head) == sizeof(SliceHeader) + kTagBytes);
  // A queued part and its header.
  struct Outgoing {
    Head head;
    ConstBytes bytes;
    Tag tag{};
    uint64_t number = 0;  // of the header among the sealed messages
  };
  // A posted part and what its header must contain.
  struct Incoming {
    Head head;  // as it arrives
    uint32_t tag = 0;
    uint64_t slice_bytes = 0;
    Bytes bytes;
    Tag tag_of_bytes{};  // as it arrives
  };
  // The parts of a slice on the wire, and the places of its bytes among them.
  struct Shape {
    std::size_t head = 0;
    std::size_t bytes = 0;
    std::size_t tag = 0;
    std::size_t whole() const { return head + bytes + tag; }
  };
  static constexpr std::size_t kGather = 16;  // slices in one system call
  using Segments = std::array<iovec, 3 * kGather>;

  Shape shape_of(std::size_t bytes) const;
  bool encrypts() const { return protection_ && protection_->security == Security::encrypt; }
  void seal_head(Head& head);
  bool open_head(Head& head, bool consume);
  void seal_slice(Outgoing& slice);
  void stage();
  Outcome push_staged();
  Outcome take_head(Incoming& slice);
  Outcome take_payload(Incoming& slice, std::size_t from, std::size_t to);

  int gather_outgoing(Segments& segments) const;
  int gather_incoming(Segments& segments);
  void count_sent(std::size_t bytes);
  Outcome count_received(std::size_t bytes);
  Outcome check_header(const Incoming& front);
  Outcome failed_with(int error_number);

  UniqueFd fd_;
  std::unique_ptr<StreamProtection> protection_;  // null: plain

  // Positions count slices since the beginning; slice k lies at k % kDepth.
  uint64_t queued_ = 0;
  uint64_t sent_ = 0;
  std::size_t front_sent_ = 0;  // bytes of slice sent_ that have been sent, its header included
  uint64_t sealed_ = 0;         // protected streams: slices whose header was sealed

  // Encrypted streams: bytes of slices, as they travel. staged_slice_ is the first slice that is not wholly among them.
  std::vector<std::byte> staged_;
  std::size_t staged_end_ = 0;
  std::size_t staged_sent_ = 0;
  uint64_t staged_slice_ = 0;
  std::size_t front_staged_ = 0;  // bytes of staged_slice_ that are

  uint64_t posted_ = 0;
  uint64_t received_ = 0;
  std::size_t front_received_ = 0;

  int error_number_ = 0;
  SliceHeader arrived_;
  SliceHeader expected_;
  std::array<Outgoing, kDepth> outgoing_;
  std::array<Incoming, kDepth> incoming_;
};

}  // namespace fdl
