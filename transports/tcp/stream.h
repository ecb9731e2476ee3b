// TcpStream: one connection with one peer, both directions: a lane, or one of several that share a lane's slices.
//
// A slice is a header and its bytes, or the part of them that this connection carries. What is queued goes out in one
// system call, and what arrives goes straight into the posted buffers, headers between them: the sizes are known to
// both ends. A header that is not as expected ends the stream, so that bytes which then landed in a wrong buffer are
// never called done. What nobody has posted a receive for stays in the kernel.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "system/fd.h"

namespace fdl {

// On the wire, in the byte order of the machine (all that farandole runs on are little-endian).
struct SliceHeader {
  uint32_t tag = 0;
  uint32_t kind = 0;
  uint64_t bytes = 0;  // of the slice, of which a part may follow: both ends know where it is cut
};
static_assert(sizeof(SliceHeader) == 16);

class TcpStream {
 public:
  static constexpr uint64_t kDepth = 64;  // outstanding slices in each direction

  enum class Outcome {
    nothing,   // the socket takes or gives nothing now
    moved,     // bytes went
    unread,    // look(): data waits for a receive
    left,      // the peer ended its transport in order
    closed,    // the peer is gone
    broken,    // the connection failed: error_number()
    mismatch,  // arrived() and expected() tell
    garbage,   // what arrived is no slice
  };

  TcpStream() = default;
  explicit TcpStream(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  void close() { fd_.reset(); }

  bool has_room_to_send() const { return queued_ - sent_ < kDepth; }
  bool has_room_to_receive() const { return posted_ - received_ < kDepth; }
  // `part` of a slice of so many bytes. There must be room.
  void post_send(uint32_t tag, uint64_t slice_bytes, ConstBytes part);
  void post_recv(uint32_t tag, uint64_t slice_bytes, Bytes part);
  // So many, since the beginning, are done.
  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }
  bool sending() const { return sent_ != queued_; }
  bool receiving() const { return received_ != posted_; }

  Outcome push();
  Outcome pull();
  // What a hang-up means while no receive is posted.
  Outcome look();
  // Tells the peer that this end leaves in order, unless a slice is half sent; then ends this direction. Bytes that the
  // kernel has taken still arrive.
  void leave();

  int error_number() const { return error_number_; }
  const SliceHeader& arrived() const { return arrived_; }
  const SliceHeader& expected() const { return expected_; }

  // What the poller was told about this stream.
  struct Watch {
    bool read = false;
    bool write = false;
    bool hang_up = false;
    bool operator==(const Watch&) const = default;
  };
  Watch watch;
  bool watches_early = false;  // reading is watched even while no receive is posted
  bool in_poller = false;
  bool hung_up = false;  // the poller has told, and there is no need to hear it again
  bool peer_left = false;

 private:
  struct Outgoing {
    SliceHeader header;
    ConstBytes bytes;
  };
  struct Incoming {
    SliceHeader header;  // as it arrives
    uint32_t tag = 0;
    uint64_t slice_bytes = 0;
    Bytes bytes;
  };
  static constexpr std::size_t kGather = 16;  // slices in one system call
  using Pieces = std::array<iovec, 2 * kGather>;

  int gather_outgoing(Pieces& pieces) const;
  int gather_incoming(Pieces& pieces);
  void count_sent(std::size_t bytes);
  Outcome count_received(std::size_t bytes);
  Outcome check_header(const Incoming& front);
  Outcome failed_with(int error_number);

  UniqueFd fd_;

  // Positions count slices since the beginning; slice k lies at k % kDepth.
  uint64_t queued_ = 0;
  uint64_t sent_ = 0;
  std::size_t front_sent_ = 0;  // bytes of slice sent_ that are gone, its header included
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
