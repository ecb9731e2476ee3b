// TcpStream calls sendmsg and recvmsg on as many outstanding slices as fit into one burst.
#include "transports/tcp/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

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

  bool full() const { return static_cast<std::size_t>(count) + 3 > capacity || bytes >= kBurstBytes; }
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

ConstBytes bytes_of(const SliceHeader& header) { return std::as_bytes(std::span(&header, 1)); }

}  // namespace

TcpStream::TcpStream(UniqueFd fd, std::unique_ptr<StreamProtection> protection) {
  attach(std::move(fd), std::move(protection));
}

void TcpStream::attach(UniqueFd fd, std::unique_ptr<StreamProtection> protection) {
  fd_ = std::move(fd);
  protection_ = std::move(protection);
  if (encrypts()) staged_.resize(kBurstBytes);
  if (!protection_ || encrypts()) return;
  for (uint64_t position = sent_; position != queued_; ++position) seal_slice(outgoing_[position % kDepth]);
}

TcpStream::Shape TcpStream::shape_of(std::size_t bytes) const {
  if (!protection_) return {kHeaderBytes, bytes, 0};
  return {kHeaderBytes + kTagBytes, bytes, bytes == 0 ? 0 : kTagBytes};
}

void TcpStream::post_send(uint32_t tag, uint64_t slice_bytes, ConstBytes part) {
  FDL_CHECK(may_post_send());
  Outgoing& slice = outgoing_[queued_++ % kDepth];
  slice.head.header = {tag, kSlice, slice_bytes};
  slice.bytes = part;
  if (protection_ && !encrypts()) seal_slice(slice);
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
    const Shape shape = shape_of(slice.bytes.size());
    gathering.add(const_cast<Head*>(&slice.head), shape.head, skip);
    gathering.add(const_cast<std::byte*>(slice.bytes.data()), shape.bytes, skip);
    gathering.add(const_cast<std::byte*>(slice.tag.data()), shape.tag, skip);
  }
  return gathering.count;
}

// Lists the space for the missing bytes of the posted slices, from the front slice on.
int TcpStream::gather_incoming(Segments& segments) {
  Gathering gathering{segments.data(), segments.size()};
  std::size_t skip = front_received_;
  for (uint64_t position = received_; position != posted_ && !gathering.full(); ++position) {
    Incoming& slice = incoming_[position % kDepth];
    const Shape shape = shape_of(slice.bytes.size());
    gathering.add(&slice.head, shape.head, skip);
    gathering.add(slice.bytes.data(), shape.bytes, skip);
    gathering.add(slice.tag_of_bytes.data(), shape.tag, skip);
  }
  return gathering.count;
}

TcpStream::Outcome TcpStream::push() {
  if (encrypts()) return push_staged();
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
    const std::size_t whole = shape_of(outgoing_[sent_ % kDepth].bytes.size()).whole();
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

// Advances the receive position by the bytes that arrived, and checks each header and tag as soon as it is complete.
TcpStream::Outcome TcpStream::count_received(std::size_t bytes) {
  while (bytes > 0) {
    Incoming& front = incoming_[received_ % kDepth];
    const Shape shape = shape_of(front.bytes.size());
    if (front_received_ < shape.head) {
      const std::size_t step = std::min(shape.head - front_received_, bytes);
      bytes -= step;
      front_received_ += step;
      if (front_received_ < shape.head) break;
      const Outcome outcome = take_head(front);
      if (outcome != Outcome::moved) return outcome;
    }
    const std::size_t step = std::min(shape.whole() - front_received_, bytes);
    if (protection_ && shape.tag > 0) {
      const Outcome outcome = take_payload(front, front_received_ - shape.head, front_received_ - shape.head + step);
      if (outcome != Outcome::moved) return outcome;
    }
    bytes -= step;
    front_received_ += step;
    if (front_received_ < shape.whole()) break;
    front_received_ = 0;
    ++received_;
  }
  return Outcome::moved;
}

TcpStream::Outcome TcpStream::check_header(const Incoming& front) {
  // Both headers are kept for the error text.
  arrived_ = front.head.header;
  expected_ = {front.tag, kSlice, front.slice_bytes};
  if (arrived_.kind == kGoodbye) return Outcome::left;
  if (arrived_.kind != kSlice) return Outcome::garbage;
  return arrived_.tag == front.tag && arrived_.bytes == front.slice_bytes ? Outcome::moved : Outcome::mismatch;
}

TcpStream::Outcome TcpStream::peek() {
  Head next;
  const auto wanted = static_cast<ssize_t>(shape_of(0).head);
  const ssize_t count = ::recv(fd_.get(), &next, static_cast<std::size_t>(wanted), MSG_PEEK | MSG_DONTWAIT);
  if (count < 0) return failed_with(errno);
  if (count == 0) return Outcome::closed;
  // A header that is not authentic is reported when a receive reads it.
  if (count < wanted || (protection_ && !open_head(next, false))) return Outcome::unread;
  return next.header.kind == kGoodbye ? Outcome::left : Outcome::unread;
}

void TcpStream::leave() {
  // A goodbye inside a half-sent slice would be read as its data.
  if (front_sent_ == 0) {
    Head goodbye{{0, kGoodbye, 0}};
    if (protection_) {
      // The goodbye takes the place of the first slice that does not leave any more.
      if (sealed_ > sent_) protection_->sends.go_back_to(outgoing_[sent_ % kDepth].number);
      seal_head(goodbye);
    }
    [[maybe_unused]] const auto sent = ::send(fd_.get(), &goodbye, shape_of(0).head, MSG_NOSIGNAL | MSG_DONTWAIT);
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

// ---- Protected streams ----

void TcpStream::seal_head(Head& head) {
  Seal& seal = protection_->sends;
  seal.begin();
  if (encrypts()) {
    const SliceHeader plain = head.header;
    seal.crypt(bytes_of(plain), reinterpret_cast<std::byte*>(&head.header));
  } else {
    seal.add(bytes_of(head.header));
  }
  head.tag = seal.finish();
}

// Decrypts the header if the stream is encrypted. If it is not consumed, it stays the next message.
bool TcpStream::open_head(Head& head, bool consume) {
  Seal& seal = protection_->receives;
  seal.begin();
  if (encrypts()) {
    seal.crypt(bytes_of(head.header), reinterpret_cast<std::byte*>(&head.header));
  } else {
    seal.add(bytes_of(head.header));
  }
  return consume ? seal.finish(head.tag) : seal.check(head.tag);
}

// Authenticates a slice that travels as it is.
void TcpStream::seal_slice(Outgoing& slice) {
  slice.number = protection_->sends.number();
  ++sealed_;
  seal_head(slice.head);
  if (slice.bytes.empty()) return;
  protection_->sends.begin();
  protection_->sends.add(slice.bytes);
  slice.tag = protection_->sends.finish();
}

// Fills the empty buffer with the next encrypted bytes. A slice may continue in the next buffer.
void TcpStream::stage() {
  staged_sent_ = staged_end_ = 0;
  Seal& seal = protection_->sends;
  while (staged_slice_ != queued_) {
    Outgoing& slice = outgoing_[staged_slice_ % kDepth];
    const Shape shape = shape_of(slice.bytes.size());
    const auto room = [this] { return staged_.size() - staged_end_; };
    if (front_staged_ == 0) {
      if (room() < shape.head) return;
      slice.number = seal.number();
      ++sealed_;
      Head head = slice.head;
      seal_head(head);
      std::memcpy(&staged_[staged_end_], &head, shape.head);
      staged_end_ += shape.head;
      front_staged_ = shape.head;
    }
    if (const std::size_t done = front_staged_ - shape.head; done < shape.bytes) {
      if (done == 0) seal.begin();
      const std::size_t step = std::min(shape.bytes - done, room());
      seal.crypt(slice.bytes.subspan(done, step), staged_.data() + staged_end_);
      staged_end_ += step;
      front_staged_ += step;
    }
    if (front_staged_ < shape.head + shape.bytes || room() < shape.tag) return;
    if (shape.tag > 0) {
      const Tag tag = seal.finish();
      std::memcpy(&staged_[staged_end_], tag.data(), shape.tag);
      staged_end_ += shape.tag;
    }
    front_staged_ = 0;
    ++staged_slice_;
  }
}

TcpStream::Outcome TcpStream::push_staged() {
  if (staged_sent_ == staged_end_) stage();
  const ssize_t count =
      ::send(fd_.get(), staged_.data() + staged_sent_, staged_end_ - staged_sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) return failed_with(errno);
  staged_sent_ += static_cast<std::size_t>(count);
  count_sent(static_cast<std::size_t>(count));
  return Outcome::moved;
}

TcpStream::Outcome TcpStream::take_head(Incoming& slice) {
  if (protection_ && !open_head(slice.head, true)) return Outcome::forged;
  return check_header(slice);
}

// Takes the bytes [from, to) of the slice's bytes and their tag. Decrypts them in place.
TcpStream::Outcome TcpStream::take_payload(Incoming& slice, std::size_t from, std::size_t to) {
  Seal& seal = protection_->receives;
  const std::size_t size = slice.bytes.size();
  if (from < size) {
    if (from == 0) seal.begin();
    const Bytes fresh = slice.bytes.subspan(from, std::min(to, size) - from);
    encrypts() ? seal.crypt(fresh, fresh.data()) : seal.add(fresh);
  }
  const bool complete = to == size + kTagBytes;
  return !complete || seal.finish(slice.tag_of_bytes) ? Outcome::moved : Outcome::forged;
}

TcpStream::Outcome TcpStream::failed_with(int error_number) {
  if (would_block(error_number)) return Outcome::nothing;
  // Kept for the error text.
  error_number_ = error_number;
  return error_number == EPIPE || error_number == ECONNRESET ? Outcome::closed : Outcome::broken;
}

}  // namespace fdl
