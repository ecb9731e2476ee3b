// A slice begins to be written when the peer has said where. Until then the peer has an offer, which shows it a
// mismatch.
#include "transports/ofi/ofi_sender.h"

#include <cstring>
#include <utility>

namespace fdl {

OfiSender::OfiSender(OfiPost& post)
    : post_(post), link_(*post.link), ledger_(post.ledger), out_(post.ledger.streams() / 2) {}

OfiSender::Outgoing& OfiSender::outgoing(std::size_t at) {
  auto& out = out_[at / 2];
  if (!out) {
    out = std::make_unique<Outgoing>();
    out->targets.resize(kOfiAhead * link_.rails());
  }
  return *out;
}

void OfiSender::append(std::size_t at, uint32_t tag, ConstBytes bytes) {
  Sending& slice = outgoing(at).slices[ledger_[at].posted % kOfiDepth];
  slice.state = Sending::State::waiting;
  slice.tag = tag;
  slice.bytes = bytes;
  slice.begun = slice.written = 0;
}

bool OfiSender::push(std::size_t at) {
  Outgoing& out = *out_[at / 2];
  SliceLedger::Counts& counts = ledger_[at];
  bool moved = false;
  for (uint64_t position = counts.finished; position < counts.posted && ledger_.error_of(at).ok(); ++position) {
    Sending& slice = out.slices[position % kOfiDepth];
    if (slice.state == Sending::State::done) continue;
    moved |= slice.bytes.size() <= kEagerBytes ? send_eager(at, position, slice) : send_long(at, position, slice);
  }
  for (; !counts.is_idle() && out.slices[counts.finished % kOfiDepth].state == Sending::State::done; moved = true) {
    ++counts.finished;
  }
  return moved;
}

bool OfiSender::send_eager(std::size_t at, uint64_t position, Sending& slice) {
  const Channel channel = SliceLedger::channel_of(at);
  if (position >= out_[at / 2]->taken + kOfiWindow) return false;
  OfiHead head;
  OfiPacket* packet = post_.begin(OfiKind::eager, channel, head);
  if (packet == nullptr) return false;
  head.tag = slice.tag;
  head.position = position;
  head.bytes = slice.bytes.size();
  if (!slice.bytes.empty()) std::memcpy(packet->payload(), slice.bytes.data(), slice.bytes.size());
  // This rank may make no more progress for a long time once the slice is done, so the network must have it then.
  if (!post_.finish_now(packet, head, slice.bytes.size(), channel.peer)) return false;
  slice.state = Sending::State::done;
  return true;
}

bool OfiSender::send_long(std::size_t at, uint64_t position, Sending& slice) {
  const Channel channel = SliceLedger::channel_of(at);
  Ready& ready = out_[at / 2]->ready[position % kOfiAhead];
  const bool fits = ready.valid && ready.bytes == slice.bytes.size() && ready.tag == slice.tag;
  if (slice.state == Sending::State::waiting && !fits) {
    return offer(at, position, slice);
  }
  if (!fits && slice.state != Sending::State::writing) return false;
  if (ledger_.has_left(channel.peer) || is_leaving_) return false;  // it takes, or this rank begins, no more writes
  if (slice.state != Sending::State::writing) {
    if (const Status begun = begin_writing(slice, ready.landing); !begun.ok()) {
      post_.fail(channel.peer, begun);
      return true;
    }
  }
  return write_segments(at, position, slice);
}

Status OfiSender::begin_writing(Sending& slice, uint32_t landing) {
  FDL_ASSIGN_OR_RETURN(slice.source, link_.memory().source(slice.bytes));
  slice.landing = landing;
  slice.state = Sending::State::writing;
  return {};
}

bool OfiSender::write_segments(std::size_t at, uint64_t position, Sending& slice) {
  const int peer = SliceLedger::channel_of(at).peer;
  const OfiSegments segments = post_.segments_of(slice.bytes.size());
  const OfiTarget* targets = &out_[at / 2]->targets[position % kOfiAhead * link_.rails()];
  bool moved = false;
  while (slice.begun < segments.count()) {
    const std::size_t rail = slice.begun % link_.rails();
    const std::size_t begin = segments.begin(slice.begun);
    const auto outcome = link_.write(rail, peer, slice.bytes.subspan(begin, segments.length(slice.begun)),
                                     slice.source.descriptor(rail), targets[rail], begin, slice.landing, at, position);
    if (outcome != OfiLink::Outcome::begun) break;
    ++slice.begun;
    moved = true;
  }
  return moved;
}

void OfiSender::on_written(std::size_t at, uint64_t position) {
  Sending& slice = out_[at / 2]->slices[position % kOfiDepth];
  if (slice.state != Sending::State::writing || ++slice.written < post_.segments_of(slice.bytes.size()).count()) return;
  slice.source.end();
  out_[at / 2]->ready[position % kOfiAhead].valid = false;
  slice.state = Sending::State::done;
  push(at);
}

void OfiSender::note_taken(int peer, const OfiHead& head) {
  for (int i = 0; i < kChannelCount; ++i) {
    const std::size_t at = SliceLedger::stream_of({peer, i}, true);
    Outgoing* out = out_[at / 2].get();
    if (out == nullptr) continue;
    const uint32_t more = head.taken[static_cast<std::size_t>(i)] - static_cast<uint32_t>(out->taken);
    if (more <= kOfiAhead && out->taken + more <= ledger_[at].posted) out->taken += more;
  }
}

void OfiSender::take_ready(std::size_t at, const OfiHead& head, ConstBytes payload) {
  Outgoing& out = outgoing(at);
  if (head.position < ledger_[at].finished || head.position - ledger_[at].finished >= kOfiAhead) {
    return post_.fail_for_order(at, head);
  }
  out.ready[head.position % kOfiAhead] = {true, head.tag, head.landing, head.bytes};
  std::memcpy(&out.targets[head.position % kOfiAhead * link_.rails()], payload.data(), payload.size());
  push(at);
}

bool OfiSender::offer(std::size_t at, uint64_t position, Sending& slice) {
  const Channel channel = SliceLedger::channel_of(at);
  OfiHead head;
  OfiPacket* packet = post_.begin(OfiKind::offer, channel, head);
  if (packet == nullptr) return false;
  head.tag = slice.tag;
  head.position = position;
  head.bytes = slice.bytes.size();
  post_.finish(packet, head, 0, channel.peer);
  slice.state = Sending::State::offered;
  return true;
}

}  // namespace fdl
