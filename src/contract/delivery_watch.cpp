// DeliveryWatch compares counts only: it sends nothing itself.
#include "contract/delivery_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace fdl {
namespace {

// A thread that waits in a transport drives it more often than this.
constexpr int64_t kUndriven_ns = 2'000'000'000;
constexpr int64_t kByte_ns = 1000;  // of a long slice: a network is not slower than 1 MB/s

}  // namespace

DeliveryWatch::DeliveryWatch(const SliceLedger& ledger, double lost_after_s)
    : ledger_(ledger),
      limit_s_(2 * lost_after_s),
      posted_(static_cast<std::size_t>(ledger.size() * kChannelCount)),
      finished_(posted_.size()),
      sent_by_(posted_.size()),
      waits_(posted_.size()) {}

SliceCounts DeliveryWatch::sent_to(int peer, int64_t now_ns) {
  const uint64_t rounds = rounds_.load(std::memory_order_relaxed);
  if (std::exchange(seen_rounds_, rounds) != rounds) seen_ns_ = now_ns;
  const auto& counts = now_ns - seen_ns_ < kUndriven_ns ? posted_ : finished_;
  SliceCounts sent{};
  for (int i = 0; i < kChannelCount; ++i) {
    sent[static_cast<std::size_t>(i)] = counts[index({peer, i})].load(std::memory_order_relaxed);
  }
  return sent;
}

void DeliveryWatch::note_sent_by(int peer, const SliceCounts& sent) {
  for (int i = 0; i < kChannelCount; ++i) {
    sent_by_[index({peer, i})].store(sent[static_cast<std::size_t>(i)], std::memory_order_relaxed);
  }
}

void DeliveryWatch::note_posted(std::size_t stream, std::size_t bytes) {
  const std::size_t at = index(SliceLedger::channel_of(stream));
  if (SliceLedger::is_outgoing(stream)) {
    posted_[at].store(ledger_[stream].posted, std::memory_order_relaxed);
  } else {
    waits_[at].longest = std::max(waits_[at].longest, bytes);
  }
}

std::vector<int> DeliveryWatch::awaited_peers() const {
  std::vector<int> peers;
  for (int peer = 0; peer < ledger_.size(); ++peer) {
    if (!ledger_.joins(peer) || ledger_.has_failed(peer)) continue;
    for (int i = 0; i < kChannelCount; ++i) {
      if (ledger_[SliceLedger::stream_of({peer, i}, false)].is_idle()) continue;
      peers.push_back(peer);
      break;
    }
  }
  return peers;
}

bool DeliveryWatch::has_sent(Channel channel, uint64_t position) const {
  return sent_by_[index(channel)].load(std::memory_order_relaxed) > position ||
         ledger_.sent_before_it_left(channel) > position;
}

bool DeliveryWatch::is_overdue(Channel channel, int64_t now_ns) {
  const SliceLedger::Counts& in = ledger_[SliceLedger::stream_of(channel, false)];
  Wait& wait = waits_[index(channel)];
  if (in.is_idle() || !ledger_.error_of(channel).ok() || !has_sent(channel, in.finished)) {
    wait.slice.end();
    return false;
  }
  const int64_t limit_ns = seconds_to_ns(limit_s_) + static_cast<int64_t>(wait.longest) * kByte_ns;
  return wait.slice.measure(in.finished, now_ns) >= limit_ns;
}

std::optional<DeliveryWatch::Overdue> DeliveryWatch::find_overdue(int64_t now_ns) {
  for (int peer = 0; peer < ledger_.size(); ++peer) {
    if (!ledger_.joins(peer)) continue;
    bool any = false;
    for (int i = 0; i < kChannelCount; ++i) any |= is_overdue({peer, i}, now_ns);
    if (!any) continue;
    const Member& member = ledger_.member(peer);
    return Overdue{peer,
                   Status::blame(member.world_rank, member.host_name, Code::transport,
                                 fmt::format("{}: what {} has sent has not arrived for {:g} s (twice "
                                             "FARANDOLE_LOST_AFTER_S): the network between the two hosts is cut, or "
                                             "was interrupted",
                                             ledger_.transport(), ledger_.name_of(peer), limit_s_))};
  }
  return std::nullopt;
}

}  // namespace fdl
