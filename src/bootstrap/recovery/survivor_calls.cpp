// Each rank has a pause after a failed call, which doubles, and the time since when it could not be reached.
#include "bootstrap/recovery/survivor_calls.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace fdl {
namespace {

constexpr int64_t kLongestPause_ns = 500'000'000;
constexpr int64_t kNever_ns = std::numeric_limits<int64_t>::max();

}  // namespace

std::set<int> SurvivorCalls::wanted() {
  for (SurvivorMessage& message : survivors_.take_outgoing()) unsent_.push_back(std::move(message));
  std::set<int> wanted = survivors_.wanted();
  for (const SurvivorMessage& message : unsent_) wanted.insert(message.to);
  return wanted;
}

bool SurvivorCalls::may_call(int rank, int64_t now_ns) const {
  const auto peer = peers_.find(rank);
  return peer == peers_.end() || now_ns >= peer->second.again_ns;
}

Deadline SurvivorCalls::next(const std::set<int>& ranks) const {
  int64_t next = kNever_ns;
  for (const int rank : ranks) {
    const auto peer = peers_.find(rank);
    next = std::min(next, peer == peers_.end() ? 0 : peer->second.again_ns);
  }
  return Deadline::at_ns(next);
}

void SurvivorCalls::begin(int rank, int64_t now_ns) {
  Peer& peer = peers_[rank];
  if (peer.unreached_since_ns < 0) peer.unreached_since_ns = now_ns;
}

std::vector<SurvivorMessage> SurvivorCalls::connected(int rank) {
  peers_[rank] = {};
  std::vector<SurvivorMessage> first{survivors_.greeting(rank)};
  // An address that was sent over the connection before may be lost.
  if (survivors_.has_decided() && address()) first.push_back(address_for(rank));
  return first;
}

SurvivorCalls::Loss SurvivorCalls::failed(int rank, bool refused, int64_t now_ns) {
  const Peer& peer = peers_[rank];
  const bool is_cut_off = peer.unreached_since_ns >= 0 && now_ns - peer.unreached_since_ns >= lost_after_ns_;
  pause(rank, now_ns);
  if (!refused && !is_cut_off) return Loss::none;
  std::erase_if(unsent_, [rank](const SurvivorMessage& message) { return message.to == rank; });
  refused_.insert(rank);
  return refused ? Loss::ended : Loss::cut_off;
}

void SurvivorCalls::pause(int rank, int64_t now_ns) {
  Peer& peer = peers_[rank];
  peer.again_ns = survivors_.is_gone(rank) ? kNever_ns : now_ns + peer.pause_ns;
  peer.pause_ns = std::min(2 * peer.pause_ns, kLongestPause_ns);
}

std::vector<SurvivorMessage> SurvivorCalls::take_for(int rank) {
  std::vector<SurvivorMessage> taken;
  for (auto message = unsent_.begin(); message != unsent_.end();) {
    if (message->to != rank) {
      ++message;
      continue;
    }
    taken.push_back(std::move(*message));
    message = unsent_.erase(message);
  }
  return taken;
}

bool SurvivorCalls::has_unsent() const {
  return std::ranges::any_of(unsent_,
                             [this](const SurvivorMessage& message) { return !survivors_.is_gone(message.to); });
}

void SurvivorCalls::receive(const SurvivorMessage& message, int64_t now_ns) {
  if (message.kind == SurvivorMessage::Kind::address) addresses_[message.round] = message.address;
  survivors_.receive(message, now_ns);
}

void SurvivorCalls::report_refusals(int64_t now_ns) {
  for (const int rank : std::exchange(refused_, {})) survivors_.refused(rank, now_ns);
}

void SurvivorCalls::serve_at(const std::string& address) {
  addresses_[survivors_.round()] = address;
  for (const int rank : survivors_.members()) {
    if (rank != me_) unsent_.push_back(address_for(rank));
  }
}

std::optional<std::string> SurvivorCalls::address() const {
  const auto found = addresses_.find(survivors_.round());
  return found == addresses_.end() ? std::nullopt : std::optional(found->second);
}

SurvivorMessage SurvivorCalls::address_for(int rank) const {
  SurvivorMessage message{.kind = SurvivorMessage::Kind::address, .from = me_, .to = rank, .round = survivors_.round()};
  message.address = *address();
  return message;
}

}  // namespace fdl
