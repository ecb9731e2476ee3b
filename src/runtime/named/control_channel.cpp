// ControlChannel keeps one receive posted for each peer, and keeps the bytes of each send until it has completed.
#include "runtime/named/control_channel.h"

#include <fmt/format.h>

#include <cstring>

#include "agree/wire/wire.h"

namespace fdl {
namespace {

// The bytes of a frame that its tag covers: all but the tag itself.
template <typename Frame>
void add_frame(Seal& seal, const Frame& frame) {
  const ConstBytes bytes(frame);
  seal.begin();
  seal.add(bytes.first(sizeof(uint64_t)));
  seal.add(bytes.subspan(sizeof(uint64_t) + kTagBytes));
}

Tag tag_at(const std::byte* data) {
  Tag tag;
  std::memcpy(tag.data(), data, tag.size());
  return tag;
}

}  // namespace

ControlChannel::ControlChannel(Communicator& comm, const std::vector<int>& peers) : comm_(comm) {
  for (const int rank : peers) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = rank;
    make_seals(*peers_.back());
    post_receive(*peers_.back(), peers_.back()->frame.data(), kFrameBytes);
  }
}

void ControlChannel::make_seals(Peer& peer) {
  const std::string_view key = comm_.session_key_with(peer.rank);
  if (key.empty()) return;
  const auto purpose = [this](int from, int to) {
    return fmt::format("farandole control {} {} {}", from, to, comm_.id());
  };
  peer.sends.emplace(derive_session_key(key, {}, purpose(comm_.rank(), peer.rank)), Seal::End::sender);
  peer.receives.emplace(derive_session_key(key, {}, purpose(peer.rank, comm_.rank())), Seal::End::receiver);
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
      if (length > 0) std::memcpy(out.frame.data() + kHeadBytes, bytes.data(), length);
    } else {
      out.rest = std::move(bytes);
    }
    if (peer->sends) seal(*peer->sends, out);
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

// Writes the tags of a message: into its frame, and behind its rest.
void ControlChannel::seal(Seal& seal, Outgoing& out) {
  add_frame(seal, out.frame);
  const Tag of_frame = seal.finish();
  std::memcpy(out.frame.data() + sizeof(uint64_t), of_frame.data(), kTagBytes);
  if (out.rest.empty()) return;
  seal.begin();
  seal.add(out.rest);
  const Tag of_rest = seal.finish();
  out.rest.insert(out.rest.end(), of_rest.begin(), of_rest.end());
}

// Nothing in a frame is interpreted before its tag has been checked.
Status ControlChannel::check_frame(Peer& peer) {
  if (!peer.receives) return {};
  add_frame(*peer.receives, peer.frame);
  return peer.receives->finish(tag_at(peer.frame.data() + sizeof(uint64_t))) ? Status() : tampered(peer);
}

// Removes the tag of a rest that is authentic.
Status ControlChannel::check_rest(Peer& peer) {
  if (!peer.receives) return {};
  const std::size_t length = peer.body.size() - kTagBytes;
  peer.receives->begin();
  peer.receives->add(ConstBytes(peer.body).first(length));
  if (!peer.receives->finish(tag_at(peer.body.data() + length))) return tampered(peer);
  peer.body.resize(length);
  return {};
}

// Names no culprit: neither of the two ranks has changed the message.
Status ControlChannel::tampered(const Peer& peer) const {
  const auto name = [this](int rank) { return name_of(comm_.members()[static_cast<std::size_t>(rank)]); };
  return tampered_between("control message", name(peer.rank), name(comm_.rank()));
}

// Handles one completed receive of a peer; false when none has completed. The next receive is posted before
// on_message, which may take long.
bool ControlChannel::receive(Peer& peer, const std::function<void(int, ConstBytes)>& on_message, Status& failure) {
  if (!peer.incoming.completion.done) return false;
  failure = peer.incoming.completion.status;
  if (!failure.ok()) return true;
  failure = peer.receiving_rest ? check_rest(peer) : check_frame(peer);
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
    on_message(peer.rank, ConstBytes(frame).subspan(kHeadBytes, length));
  } else {
    peer.receiving_rest = true;
    peer.body.resize(length + (peer.receives ? kTagBytes : 0));
    post_receive(peer, peer.body.data(), peer.body.size());
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
