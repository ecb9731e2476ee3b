// A connection passes through two states here: stranger, with a deadline, and member, after a hello that is accepted. A
// client that only asks what the ranks do stays a stranger.
#include "bootstrap/coordinator/coordinator_rounds.h"

#include "bootstrap/topology/location.h"

namespace fdl {
namespace {

constexpr std::size_t kMostStrangers = 128;             // besides ranks that have not arrived
constexpr int64_t kStrangerTimeout_ns = 5'000'000'000;  // until a stranger must have become a member

}  // namespace

// ---- Strangers ----

CoordinatorRounds::Peer CoordinatorRounds::add(bool may_only_query, int64_t now_ns) {
  evict_if_full();
  const Peer peer = next_peer_++;
  known_[peer].may_only_query = may_only_query;
  strangers_.emplace(peer, Deadline::at_ns(now_ns + kStrangerTimeout_ns));
  return peer;
}

// The limit bounds descriptors and memory that a flood of strangers can take. Ranks that have not arrived are strangers
// too until their hello, and all may connect at once: each has a place besides. A rank sends its proof as soon as it
// has the greeting, so the one that is closed is the one that has been silent for longest.
void CoordinatorRounds::evict_if_full() {
  if (strangers_.size() < kMostStrangers + membership_.absent_ranks()) return;
  for (const auto& [peer, timeout] : strangers_) {
    if (connections_.is_silent(peer)) return drop(peer);
  }
  drop(strangers_.begin()->first);
}

void CoordinatorRounds::drop_expired_strangers(int64_t now_ns) {
  while (!strangers_.empty() && now_ns >= strangers_.begin()->second.moment_ns()) drop(strangers_.begin()->first);
}

// Each stranger becomes a member or gives back what it holds, within seconds. If that is not enough for the ranks that
// have not arrived, a wait does not help them.
void CoordinatorRounds::note_shortage(const Status& why) {
  if (membership_.absent_ranks() > strangers_.size()) membership_.fail_start_short_of(why);
}

void CoordinatorRounds::drop(Peer peer) {
  count_stranger();
  connections_.close(peer);
}

void CoordinatorRounds::closed(Peer peer) {
  if (known_.erase(peer) == 0) return;
  strangers_.erase(peer);
  membership_.closed(peer);
}

// ---- Messages ----

void CoordinatorRounds::receive(Peer peer, std::vector<CoordinatorMessage> messages, End end, int64_t now_ns) {
  const auto found = known_.find(peer);
  if (found == known_.end()) return;
  for (CoordinatorMessage& message : messages) {
    if (!handle(peer, found->second, std::move(message), now_ns)) return drop(peer);
  }
  if (end == End::broken) return drop(peer);
  if (end == End::closed) connections_.close(peer);
}

// Returns false if the message violates the protocol.
bool CoordinatorRounds::handle(Peer peer, Connection& connection, CoordinatorMessage message, int64_t now_ns) {
  if (connection.is_member) return membership_.receive(peer, std::move(message), now_ns).ok();
  if (message.kind == CoordinatorMessage::Kind::job_query) {
    return membership_.query_job(peer, now_ns, message.number == 1).ok();
  }
  if (connection.may_only_query) return false;
  if (message.kind == CoordinatorMessage::Kind::rank_ended) {
    return membership_.process_ended(message.rank, message.why, peer).ok();
  }
  // The first message is the hello, and there is no second one.
  if (message.kind != CoordinatorMessage::Kind::hello || message.members.size() != 1) return false;
  const CoordinatorClient::Hello& hello = message.members.front();
  if (hello.host_name.size() > kMostName || hello.boot_id.size() > kMostName) return false;
  if (hello.recovery.size() > kMostKey || hello.salt.size() > kMostName) return false;
  if (hello.location.size() > kMostLocation) return false;
  // greet() queues the welcome or a refusal; a refused rank stays a stranger until its deadline or its own close.
  connection.is_member = membership_.greet(peer, hello, now_ns, message.number);
  if (connection.is_member) strangers_.erase(peer);
  return true;
}

void CoordinatorRounds::finish(int64_t now_ns) {
  membership_.tick(now_ns);
  drop_expired_strangers(now_ns);
  deliver();
}

Deadline CoordinatorRounds::next() const {
  const Deadline next = membership_.next();
  return strangers_.empty() ? next : next.earlier(strangers_.begin()->second);
}

void CoordinatorRounds::end() {
  membership_.end();
  deliver();
}

// Sending may close connections, and each closed connection causes further messages; repeats until there are none.
void CoordinatorRounds::deliver() {
  while (true) {
    const auto outgoing = membership_.take_outgoing();
    const auto hang_ups = membership_.take_hang_ups();
    if (outgoing.empty() && hang_ups.empty()) return;
    // Each connection is flushed once, with all of its messages: one system call for many small ones.
    std::vector<Peer> reached;
    MessageEncoder encoder;
    for (const JobMembership::Outgoing& one : outgoing) {
      if (one.peer == JobMembership::kOwnPeer) {
        connections_.note_own(*one.message);
        continue;
      }
      const auto found = known_.find(one.peer);
      if (found == known_.end()) continue;
      connections_.queue(one.peer, encoder.encode(one.message));
      if (!std::exchange(found->second.has_output, true)) reached.push_back(one.peer);
    }
    for (const Peer peer : reached) {
      const auto found = known_.find(peer);
      if (found == known_.end()) continue;
      found->second.has_output = false;
      connections_.flush(peer);
    }
    for (const Peer peer : hang_ups) connections_.close(peer);
  }
}

}  // namespace fdl
