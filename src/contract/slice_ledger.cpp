// SliceLedger decides about the channels of peers that have left from counts alone.
#include "contract/slice_ledger.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace fdl {

SliceLedger::SliceLedger(std::string_view transport, const Membership& membership, const std::vector<bool>& peers)
    : transport_(transport),
      rank_(membership.rank),
      members_(membership.members),
      peers_(members_.size()),
      counts_(members_.size() * kChannelCount * 2) {
  for (int member = 0; member < size(); ++member) {
    names_.push_back(membership.name_of(member));
    peers_[index(member)].joined = member != rank_ && peers[index(member)];
  }
  leavers_.reserve(members_.size());
}

// ---- Errors ----

Status SliceLedger::peer_status(int peer) const {
  for (const Status& error : peers_[index(peer)].errors) FDL_RETURN_IF_ERROR(error);
  return {};
}

Status SliceLedger::status() const {
  for (int peer = 0; peer < size(); ++peer) FDL_RETURN_IF_ERROR(peer_status(peer));
  return {};
}

bool SliceLedger::has_failed(int peer) const {
  return std::ranges::none_of(peers_[index(peer)].errors, [](const Status& error) { return error.ok(); });
}

bool SliceLedger::fail(int peer, const Status& why) {
  bool news = false;
  for (Status& error : peers_[index(peer)].errors) {
    if (!error.ok()) continue;
    error = why;
    news = true;
  }
  return news;
}

bool SliceLedger::fail_all(const Status& why) {
  bool news = false;
  for (int peer = 0; peer < size(); ++peer) {
    if (joins(peer)) news |= fail(peer, why);
  }
  return news;
}

Status SliceLedger::blame(int peer, const Status& why) const {
  return Status::blame(member(peer).world_rank, member(peer).host_name, why.code(),
                       fmt::format("{}, with {}", why.text(), name_of(peer)));
}

Status SliceLedger::mismatch(int peer, uint64_t sent_bytes, uint32_t sent_tag, uint64_t expected_bytes,
                             uint32_t expected_tag) const {
  return Status(
      Code::mismatch,
      fmt::format("{}: {} sent {} bytes (tag {:08x}) where {} expected {} bytes (tag {:08x}); they did not "
                  "call the same operation with the same arguments",
                  transport_, name_of(peer), sent_bytes, sent_tag, name_of(rank_), expected_bytes, expected_tag));
}

// ---- Leaving ----

Farewell SliceLedger::farewell_to(int peer) const {
  Farewell farewell;
  for (int channel = 0; channel < kChannelCount; ++channel) {
    farewell.sent[index(channel)] = counts_[stream_of({peer, channel}, true)].posted;
    farewell.received[index(channel)] = counts_[stream_of({peer, channel}, false)].posted;
  }
  return farewell;
}

void SliceLedger::note_left(int peer, const Farewell& farewell) {
  if (!std::exchange(peers_[index(peer)].left, true)) leavers_.push_back(peer);
  peers_[index(peer)].farewell = farewell;
}

bool SliceLedger::all_have_left() const {
  return std::ranges::all_of(peers_, [](const Peer& peer) { return !peer.joined || peer.left; });
}

bool SliceLedger::has_all(Channel channel) const {
  const Counts& in = counts_[stream_of(channel, false)];
  return in.finished >= std::min(in.posted, peers_[index(channel.peer)].farewell.sent[index(channel.index)]);
}

void SliceLedger::lose(Channel channel) {
  Status& error = peers_[index(channel.peer)].errors[index(channel.index)];
  if (!error.ok()) return;
  error = Status::blame(member(channel.peer).world_rank, member(channel.peer).host_name, Code::peer_lost,
                        fmt::format("{}: {} has left; see its own error", transport_, name_of(channel.peer)));
}

bool SliceLedger::may_post(std::size_t stream) {
  const Channel channel = channel_of(stream);
  const Peer& peer = peers_[index(channel.peer)];
  if (!error_of(channel).ok()) return false;
  if (!peer.left) return true;
  if (!is_outgoing(stream) && counts_[stream].posted < peer.farewell.sent[index(channel.index)]) return true;
  if (has_all(channel)) lose(channel);
  return false;
}

bool SliceLedger::end_channels() {
  bool any = false;
  for (const int peer : leavers_) {
    const Farewell& farewell = peers_[index(peer)].farewell;
    for (int i = 0; i < kChannelCount; ++i) {
      const Channel channel{peer, i};
      const Counts& in = counts_[stream_of(channel, false)];
      const Counts& out = counts_[stream_of(channel, true)];
      const bool needed =
          in.posted > farewell.sent[index(i)] || (!out.is_idle() && out.posted > farewell.received[index(i)]);
      if (!needed || !has_all(channel) || !error_of(channel).ok()) continue;
      lose(channel);
      any = true;
    }
  }
  return any;
}

}  // namespace fdl
