// FramedSocket combines recv and sendmsg with the frames of coordinator_wire.
#include "bootstrap/rendezvous/framed_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>

namespace fdl {
namespace {

constexpr int kReadsAtOnce = 16;  // limit per call, so that one busy rank does not block the others at the coordinator

constexpr std::size_t kPiecesAtOnce = 16;

Direction opposite(Direction direction) {
  return direction == Direction::to_coordinator ? Direction::from_coordinator : Direction::to_coordinator;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// Returns false if a frame is not a valid message.
bool open_frames(FrameOpener& opener, std::vector<CoordinatorMessage>& messages) {
  while (true) {
    auto payload = opener.next();
    if (!payload.ok()) return false;
    if (!*payload) return true;
    auto message = decode(**payload);
    if (!message.ok()) return false;
    messages.push_back(message.take());
  }
}

}  // namespace

FramedSocket::FramedSocket(UniqueFd fd, const std::string& session_key, Direction incoming)
    : fd_(std::move(fd)), opener_(session_key, incoming), sealer_(session_key, opposite(incoming)) {}

FramedSocket::State FramedSocket::receive(std::vector<CoordinatorMessage>& messages) {
  std::array<char, 16384> bytes;
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const ssize_t count = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (count > 0) {
      opener_.feed({bytes.data(), static_cast<std::size_t>(count)});
      if (!open_frames(opener_, messages)) return State::broken;
    } else if (count < 0 && would_block()) {
      return State::open;
    } else if (count == 0 || errno != EINTR) {
      has_read_close_ = count == 0 || errno == ECONNRESET;
      return opener_.is_inside_a_frame() ? State::broken : State::closed;
    }
  }
  return State::open;
}

void FramedSocket::send_encoded(const SharedMessage& message) {
  queue(sealer_.head_of(*message));
  if (!message->is_long()) return queue(message->bytes());
  outgoing_.push_back({.shared = message});
  unsent_ += message->bytes().size();
}

void FramedSocket::queue(std::string_view bytes) {
  if (outgoing_.empty() || outgoing_.back().shared) outgoing_.emplace_back();
  outgoing_.back().own += bytes;
  unsent_ += bytes.size();
}

bool FramedSocket::flush() {
  std::array<iovec, kPiecesAtOnce> parts;
  while (unsent_ > 0) {
    std::size_t count = 0;
    for (const Piece& piece : outgoing_) {
      if (count == parts.size()) break;
      const std::string_view bytes = piece.bytes().substr(count == 0 ? sent_ : 0);
      parts[count++] = {const_cast<char*>(bytes.data()), bytes.size()};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      note_sent(static_cast<std::size_t>(sent));
    } else if (would_block()) {
      return true;
    } else if (errno != EINTR) {
      is_cut_off_ = errno != EPIPE && errno != ECONNRESET;  // the kernel reports the reason once
      note_sent(unsent_);
      return false;
    }
  }
  return true;
}

void FramedSocket::note_sent(std::size_t count) {
  unsent_ -= count;
  sent_ += count;
  while (!outgoing_.empty() && sent_ >= outgoing_.front().bytes().size()) {
    sent_ -= outgoing_.front().bytes().size();
    outgoing_.pop_front();
  }
}

void FramedSocket::shut_down() { ::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace fdl
