// ControlChannel keeps one receive posted for each peer, and keeps the bytes of each send until it has completed.
#include "runtime/named/control_channel.h"

#include <cstring>

#include "agree/wire/wire.h"

namespace fdl {

ControlChannel::ControlChannel(Communicator& comm) : comm_(comm) {
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (rank == comm.rank() || (comm.rank() != 0 && rank != 0)) continue;
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = rank;
    post_receive(*peers_.back(), peers_.back()->frame.data(), kFrameBytes);
  }
}

void ControlChannel::post_receive(Peer& peer, std::byte* data, std::size_t bytes) {
  peer.incoming = Message{.peer = peer.rank, .outgoing = false, .data = data, .bytes = bytes};
  comm_.start(peer.incoming);
}

void ControlChannel::send(int rank, std::vector<std::byte> bytes) {
  for (auto& peer : peers_) {
    if (peer->rank != rank || peer->gone) continue;
    peer->outgoing.push_back(std::make_unique<Outgoing>());
    Outgoing& out = *peer->outgoing.back();
    const uint64_t length = bytes.size();
    std::memcpy(out.frame.data(), &length, sizeof length);
    if (length <= kInlineBytes) {
      if (length > 0) std::memcpy(out.frame.data() + sizeof length, bytes.data(), length);
    } else {
      out.rest = std::move(bytes);
    }
    out.first = Message{.peer = rank, .outgoing = true, .data = out.frame.data(), .bytes = kFrameBytes};
    comm_.start(out.first);
    if (!out.rest.empty()) {
      out.second = Message{.peer = rank, .outgoing = true, .data = out.rest.data(), .bytes = out.rest.size()};
      comm_.start(out.second);
    }
    ++messages_sent_;
    return;  // each rank has one peer
  }
}

// Handles one completed receive of a peer; false when none has completed. The next receive is posted before
// on_message, which may take long.
bool ControlChannel::receive(Peer& peer, const std::function<void(int, ConstBytes)>& on_message, Status& failure) {
  if (!peer.incoming.completion.done) return false;
  failure = peer.incoming.completion.status;
  if (!failure.ok()) return true;
  if (peer.receiving_rest) {
    peer.receiving_rest = false;
    const std::vector<std::byte> body = std::move(peer.body);
    post_receive(peer, peer.frame.data(), kFrameBytes);
    on_message(peer.rank, body);
    return true;
  }
  uint64_t length = 0;
  std::memcpy(&length, peer.frame.data(), sizeof length);
  if (length > kMaxControlBytes) {
    failure = Status(Code::transport, "a control message of " + std::to_string(length) + " bytes was announced");
    return true;
  }
  if (length <= kInlineBytes) {
    const Frame frame = peer.frame;
    post_receive(peer, peer.frame.data(), kFrameBytes);
    on_message(peer.rank, ConstBytes(frame).subspan(sizeof length, length));
  } else {
    peer.receiving_rest = true;
    peer.body.resize(length);
    post_receive(peer, peer.body.data(), length);
  }
  return true;
}

bool ControlChannel::progress(const std::function<void(int, ConstBytes)>& on_message,
                              const std::function<void(int, const Status&)>& on_gone) {
  bool moved = false;
  for (auto& peer : peers_) {
    Status failure;
    while (!peer->gone && receive(*peer, on_message, failure)) {
      moved = true;
      peer->gone = !failure.ok();
    }
    while (!peer->outgoing.empty() && peer->outgoing.front()->finished()) peer->outgoing.pop_front();
    if (!failure.ok()) on_gone(peer->rank, failure);
  }
  return moved;
}

}  // namespace fdl
