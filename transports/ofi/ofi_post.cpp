// Every packet carries the counts of both channels, so that few packets are needed for counts alone.
#include "transports/ofi/ofi_post.h"

#include <fmt/format.h>

#include <cstring>

#include "system/handshake.h"

namespace fdl {

OfiPost::OfiPost(std::unique_ptr<OfiLink> given, const Membership& membership, const std::vector<bool>& peers)
    : link(std::move(given)), ledger("ofi", membership, peers), told_(ledger.streams()), is_active_(ledger.streams()) {
  active.reserve(ledger.streams());
  failed.reserve(membership.members.size());
  const Digest digest = hmac_sha256(membership.job_key, "ofi/" + membership.id);
  std::memcpy(&session_, digest.data(), sizeof session_);
}

OfiPacket* OfiPost::begin(OfiKind kind, Channel channel, OfiHead& head) {
  OfiPacket* packet = link->take(channel.peer);
  if (packet == nullptr) return nullptr;
  head = {.session = session_,
          .from = static_cast<uint32_t>(ledger.rank()),
          .kind = kind,
          .channel = static_cast<uint8_t>(channel.index)};
  for (int i = 0; i < kChannelCount; ++i) {
    const std::size_t at = SliceLedger::stream_of({channel.peer, i}, false);
    head.taken[static_cast<std::size_t>(i)] = static_cast<uint32_t>(ledger[at].finished);
  }
  return packet;
}

void OfiPost::finish(OfiPacket* packet, const OfiHead& head, std::size_t payload, int peer) {
  std::memcpy(packet->bytes, &head, sizeof head);
  note_told(peer);
  const bool last = head.kind == OfiKind::goodbye || head.kind == OfiKind::settled;
  link->send(packet, sizeof head + payload, peer, last);
}

bool OfiPost::finish_now(OfiPacket* packet, const OfiHead& head, std::size_t payload, int peer) {
  std::memcpy(packet->bytes, &head, sizeof head);
  if (!link->send_now(packet, sizeof head + payload, peer)) return false;
  note_told(peer);
  return true;
}

void OfiPost::note_told(int peer) {
  for (int i = 0; i < kChannelCount; ++i) {
    const std::size_t at = SliceLedger::stream_of({peer, i}, false);
    told_[at] = ledger[at].finished;
  }
}

bool OfiPost::tell(OfiKind kind, Channel channel) {
  OfiHead head;
  OfiPacket* packet = begin(kind, channel, head);
  if (packet != nullptr) finish(packet, head, 0, channel.peer);
  return packet != nullptr;
}

void OfiPost::fail_for_order(std::size_t stream, const OfiHead& head) {
  const int peer = SliceLedger::channel_of(stream).peer;
  fail(peer, Status(Code::transport, fmt::format("ofi: {} named slice {} where {} to {} are possible; please report it",
                                                 ledger.name_of(peer), head.position, ledger[stream].finished,
                                                 ledger[stream].finished + kOfiAhead - 1)));
}

}  // namespace fdl
