// TcpStream calls sendmsg and recvmsg on as many outstanding slices as fit into one burst.
#include "transports/tcp/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"

namespace fdl {
namespace {

// The kinds of headers. Any other value means that the peer is not in step, or that the data was changed.
constexpr uint32_t kSlice = 0x4c534446;    // "FDSL"
constexpr uint32_t kGoodbye = 0x59424446;  // "FDBY"
constexpr std::size_t kHeaderBytes = sizeof(SliceHeader);
// Limit of one system call, so that both directions and all peers take turns while the bytes are still in the cache.
constexpr std::size_t kBurstBytes = 256_KiB;

// Collects the segments of one system call: the remaining header and payload bytes, at most kBurstBytes in all.
struct Gathering {
  iovec* segments;
  std::size_t capacity;
  int count = 0;
  std::size_t bytes = 0;

  bool full() const { return static_cast<std::size_t>(count) + 2 > capacity || bytes >= kBurstBytes; }
  // Adds `size` bytes at `start`, without the first `skip` of them, which were sent before.
  void add(void* start, std::size_t size, std::size_t& skip) {
    const std::size_t skipped = std::min(skip, size);
    skip -= skipped;
    const std::size_t taken = std::min(size - skipped, kBurstBytes - bytes);
    if (taken == 0) return;
    segments[count++] = {static_cast<std::byte*>(start) + skipped, taken};
    bytes += taken;
  }
};

bool would_block(int error_number) {
  // When the kernel has no buffer memory, the call is repeated later, as with a full buffer.
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

}  // namespace

void TcpStream::post_send(uint32_t tag, uint64_t slice_bytes, ConstBytes part) {
  FDL_CHECK(may_post_send());
  outgoing_[queued_++ % kDepth] = {{tag, kSlice, slice_bytes}, part};
}

void TcpStream::post_recv(uint32_t tag, uint64_t slice_bytes, Bytes part) {
  FDL_CHECK(may_post_recv());
  Incoming& slice = incoming_[posted_++ % kDepth];
  slice.tag = tag;
  slice.slice_bytes = slice_bytes;
  slice.bytes = part;
}

// Lists the unsent bytes of the queued slices, from the front slice on.
int TcpStream::gather_outgoing(Segments& segments) const {
  Gathering gathering{segments.data(), segments.size()};
  std::size_t skip = front_sent_;
  for (uint64_t position = sent_; position != queued_ && !gathering.full(); ++position) {
    const Outgoing& slice = outgoing_[position % kDepth];
    gathering.add(const_cast<SliceHeader*>(&slice.header), kHeaderBytes, skip);
    gathering.add(const_cast<std::byte*>(slice.bytes.data()), slice.bytes.size(), skip);
  }
  return gathering.count;
}

// Lists the space for the missing bytes of the posted slices, from the front slice on.
int TcpStream::gather_incoming(Segments& segments) {
  Gathering gathering{segments.data(), segments.size()};
  std::size_t skip = front_received_;
  for (uint64_t position = received_; position != posted_ && !gathering.full(); ++position) {
    Incoming& slice = incoming_[position % kDepth];
    gathering.add(&slice.header, kHeaderBytes, skip);
    gathering.add(slice.bytes.data(), slice.bytes.size(), skip);
  }
  return gathering.count;
}

TcpStream::Outcome TcpStream::push() {
  Segments segments;
  msghdr message{};
  message.msg_iov = segments.data();
  message.msg_iovlen = static_cast<std::size_t>(gather_outgoing(segments));
  const ssize_t count = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) return failed_with(errno);
  count_sent(static_cast<std::size_t>(count));
  return Outcome::moved;
}

// Advances the send position by the bytes that the kernel accepted.
void TcpStream::count_sent(std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t whole = kHeaderBytes + outgoing_[sent_ % kDepth].bytes.size();
    const std::size_t step = std::min(whole - front_sent_, bytes);
    bytes -= step;
    front_sent_ += step;
    if (front_sent_ < whole) return;
    front_sent_ = 0;
    ++sent_;
  }
}

TcpStream::Outcome TcpStream::pull() {
  Segments segments;
  msghdr message{};
  message.msg_iov = segments.data();
  message.msg_iovlen = static_cast<std::size_t>(gather_incoming(segments));
  const ssize_t count = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  if (count < 0) return failed_with(errno);
  if (count == 0) return Outcome::closed;
  return count_received(static_cast<std::size_t>(count));
}

// Advances the receive position by the bytes that arrived, and checks each header as soon as it is complete.
TcpStream::Outcome TcpStream::count_received(std::size_t bytes) {
  while (bytes > 0) {
    const Incoming& front = incoming_[received_ % kDepth];
    if (front_received_ < kHeaderBytes) {
      const std::size_t step = std::min(kHeaderBytes - front_received_, bytes);
      bytes -= step;
      front_received_ += step;
      if (front_received_ < kHeaderBytes) break;
      const Outcome outcome = check_header(front);
      if (outcome != Outcome::moved) return outcome;
    }
    const std::size_t whole = kHeaderBytes + front.bytes.size();
    const std::size_t step = std::min(whole - front_received_, bytes);
    bytes -= step;
    front_received_ += step;
    if (front_received_ < whole) break;
    front_received_ = 0;
    ++received_;
  }
  return Outcome::moved;
}

TcpStream::Outcome TcpStream::check_header(const Incoming& front) {
  // Both headers are kept for the error text.
  arrived_ = front.header;
  expected_ = {front.tag, kSlice, front.slice_bytes};
  if (arrived_.kind == kGoodbye) return Outcome::left;
  if (arrived_.kind != kSlice) return Outcome::garbage;
  return arrived_.tag == front.tag && arrived_.bytes == front.slice_bytes ? Outcome::moved : Outcome::mismatch;
}

TcpStream::Outcome TcpStream::peek() {
  SliceHeader next;
  const ssize_t count = ::recv(fd_.get(), &next, sizeof next, MSG_PEEK | MSG_DONTWAIT);
  if (count < 0) return failed_with(errno);
  if (count == 0) return Outcome::closed;
  return count == static_cast<ssize_t>(sizeof next) && next.kind == kGoodbye ? Outcome::left : Outcome::unread;
}

void TcpStream::leave() {
  // A goodbye inside a half-sent slice would be read as its data.
  if (front_sent_ == 0) {
    const SliceHeader goodbye{0, kGoodbye, 0};
    [[maybe_unused]] const auto sent = ::send(fd_.get(), &goodbye, sizeof goodbye, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  // The peer reads everything that was sent, and then the end of the stream.
  ::shutdown(fd_.get(), SHUT_WR);
  // Closing a socket with unread data resets the connection, and a reset discards data that is still on its way to the
  // peer.
  std::array<std::byte, 16_KiB> unread;
  for (int i = 0; i < 64 && ::recv(fd_.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0; ++i) {
  }
  fd_.reset();
}

TcpStream::Outcome TcpStream::failed_with(int error_number) {
  if (would_block(error_number)) return Outcome::nothing;
  // Kept for the error text.
  error_number_ = error_number;
  return error_number == EPIPE || error_number == ECONNRESET ? Outcome::closed : Outcome::broken;
}

}  // namespace fdl
