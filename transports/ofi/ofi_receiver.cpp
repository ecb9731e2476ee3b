// A receive of a long slice is announced when it is posted, so that the peer can write as soon as it has the slice.
#include "transports/ofi/ofi_receiver.h"

#include <cstring>
#include <utility>

namespace fdl {

OfiReceiver::OfiReceiver(OfiPost& post)
    : post_(post), link_(*post.link), ledger_(post.ledger), in_(post.ledger.streams() / 2) {}

OfiReceiver::Incoming& OfiReceiver::incoming(std::size_t at) {
  auto& in = in_[at / 2];
  if (!in) in = std::make_unique<Incoming>();
  return *in;
}

void OfiReceiver::append(std::size_t at, uint32_t tag, Bytes bytes) {
  incoming(at).slices[ledger_[at].posted % kOfiDepth] = {
      .done = false, .announced = bytes.size() <= kEagerBytes, .tag = tag, .landing = 0, .bytes = bytes};
}

void OfiReceiver::accept(std::size_t at, uint64_t position) {
  Incoming& in = incoming(at);
  Early& early = in.early[position % kOfiAhead];
  const Early::Kind kind = std::exchange(early.kind, Early::Kind::none);
  if (kind != Early::Kind::none && !fits(at, position, early.bytes, early.tag)) return;
  if (kind == Early::Kind::eager) {
    arrive(at, position, ConstBytes(in.payloads.get() + position % kOfiAhead * kEagerBytes, early.bytes));
  } else {
    announce(at, position);
  }
}

bool OfiReceiver::fits(std::size_t at, uint64_t position, uint64_t bytes, uint32_t tag) {
  const Receiving& slice = incoming(at).slices[position % kOfiDepth];
  if (bytes == slice.bytes.size() && tag == slice.tag) return true;
  const int peer = SliceLedger::channel_of(at).peer;
  post_.fail(peer, ledger_.mismatch(peer, bytes, tag, slice.bytes.size(), slice.tag));
  return false;
}

void OfiReceiver::arrive(std::size_t at, uint64_t position, ConstBytes bytes) {
  Receiving& slice = incoming(at).slices[position % kOfiDepth];
  if (!bytes.empty()) std::memcpy(slice.bytes.data(), bytes.data(), bytes.size());
  slice.done = true;
  finish_receives(at);
}

void OfiReceiver::finish_receives(std::size_t at) {
  Incoming& in = incoming(at);
  SliceLedger::Counts& counts = ledger_[at];
  while (!counts.is_idle() && in.slices[counts.finished % kOfiDepth].done) ++counts.finished;
  if (owes(at)) post_.activate(at);
}

bool OfiReceiver::announce(std::size_t at, uint64_t position) {
  Receiving& slice = incoming(at).slices[position % kOfiDepth];
  if (slice.announced) return true;
  const Channel channel = SliceLedger::channel_of(at);
  OfiHead head;
  OfiPacket* packet = post_.begin(OfiKind::ready, channel, head);
  if (packet == nullptr) return false;
  slice.landing = landings_.open(at, position, post_.segments_of(slice.bytes.size()).count());
  slice.announced = true;
  auto memory = link_.memory().target(slice.bytes);
  if (!memory.ok()) {
    link_.give_back(packet);
    post_.fail(channel.peer, memory.status());
    return true;
  }
  for (std::size_t rail = 0; rail < link_.rails(); ++rail) {
    const OfiTarget target{link_.rail(rail).remote_address(slice.bytes.data(), memory->begin()), memory->key(rail)};
    std::memcpy(packet->payload() + rail * sizeof target, &target, sizeof target);
  }
  landings_.find(slice.landing)->memory = memory.take();
  head.tag = slice.tag;
  head.position = position;
  head.bytes = slice.bytes.size();
  head.rails = static_cast<uint16_t>(link_.rails());
  head.landing = slice.landing;
  post_.finish(packet, head, link_.rails() * sizeof(OfiTarget), channel.peer);
  return true;
}

void OfiReceiver::on_landed(uint32_t number) {
  OfiLanding* landing = landings_.find(number);
  if (landing == nullptr || --landing->missing > 0) return;
  const std::size_t at = landing->stream;
  incoming(at).slices[landing->position % kOfiDepth].done = true;
  landings_.close(number);
  finish_receives(at);
}

bool OfiReceiver::owes(std::size_t at) const {
  return !SliceLedger::is_outgoing(at) && in_[at / 2] && ledger_[at].finished >= post_.told(at) + kOfiWindow / 2 &&
         !ledger_.has_left(SliceLedger::channel_of(at).peer);
}

bool OfiReceiver::settle(std::size_t at) {
  Incoming& in = incoming(at);
  bool moved = false;
  for (uint64_t position = ledger_[at].finished; position < ledger_[at].posted; ++position) {
    if (in.slices[position % kOfiDepth].announced) continue;
    if (!announce(at, position)) return moved;
    moved = true;
  }
  return (owes(at) && post_.tell(OfiKind::taken, SliceLedger::channel_of(at))) || moved;
}

void OfiReceiver::take_slice(std::size_t at, const OfiHead& head, ConstBytes payload) {
  Incoming& in = incoming(at);
  const SliceLedger::Counts& counts = ledger_[at];
  const bool is_offer = head.kind == OfiKind::offer;
  if (head.position < counts.finished || !ledger_.error_of(at).ok()) return;  // a late offer
  if (head.position - counts.finished >= kOfiAhead) return post_.fail_for_order(at, head);
  if (head.position < counts.posted) {
    if (in.slices[head.position % kOfiDepth].done || !fits(at, head.position, head.bytes, head.tag)) return;
    if (!is_offer) arrive(at, head.position, payload);
    return;
  }
  Early& early = in.early[head.position % kOfiAhead];
  early = {is_offer ? Early::Kind::offer : Early::Kind::eager, head.tag, head.bytes};
  if (is_offer || payload.empty()) return;
  if (!in.payloads) in.payloads = std::make_unique<std::byte[]>(kOfiAhead * kEagerBytes);
  std::memcpy(in.payloads.get() + head.position % kOfiAhead * kEagerBytes, payload.data(), payload.size());
}

void OfiReceiver::close_landings(std::size_t at) {
  if (!in_[at / 2]) return;
  for (uint64_t position = ledger_[at].finished; position < ledger_[at].posted; ++position) {
    const Receiving& slice = in_[at / 2]->slices[position % kOfiDepth];
    if (slice.done || !slice.announced || slice.bytes.size() <= kEagerBytes) continue;
    landings_.close(slice.landing);
    has_given_up_ = true;
  }
}

}  // namespace fdl
