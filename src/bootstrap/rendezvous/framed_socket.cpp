// FramedSocket combines recv and send with the frames of coordinator_wire.
#include "bootstrap/rendezvous/framed_socket.h"

#include <sys/socket.h>

#include <array>

namespace fdl {
namespace {

constexpr int kReadsAtOnce = 16;  // limit per call, so that one busy rank does not block the others at the coordinator

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
      was_closed_by_peer_ = !is_cut_off_ && (count == 0 || errno == ECONNRESET);
      return opener_.is_inside_a_frame() ? State::broken : State::closed;
    }
  }
  return State::open;
}

bool FramedSocket::flush() {
  while (unsent_bytes() > 0) {
    const ssize_t count = ::send(fd_.get(), outgoing_.data() + sent_, unsent_bytes(), MSG_NOSIGNAL);
    if (count >= 0) {
      sent_ += static_cast<std::size_t>(count);
    } else if (would_block()) {
      return true;
    } else if (errno != EINTR) {
      is_cut_off_ = errno != EPIPE && errno != ECONNRESET;  // the kernel reports the reason once
      outgoing_.clear();
      sent_ = 0;
      return false;
    }
  }
  outgoing_.clear();
  sent_ = 0;
  return true;
}

void FramedSocket::shut_down() { ::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace fdl
