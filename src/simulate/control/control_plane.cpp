// ControlPlane, part 1: events, the network and the coordinator.
#include "simulate/control/control_plane.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "simulate/control/simulated_rank.h"

namespace fdl {
namespace {

// Events that one turn of the coordinator's poller returns.
constexpr int kEventsOfRound = 64;
// Bytes of a packet that carries one part of a handshake.
constexpr std::size_t kHandshakeBytes = 128;
// A call that was dropped: the kernel repeats it after a second, and the rank (find_coordinator.cpp) in rounds of 1 to
// 5 s.
constexpr int64_t kRepeated_ns = 1'000'000'000;
// Numbers of connections; JobMembership has one of its own below.
constexpr JobMembership::Peer kFirstPeer = 16;

int64_t to_ns(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

CoordinatorOptions options_of(const Cluster& cluster, const ControlCosts& costs) {
  return {.size = cluster.ranks(),
          .job_key = "a key of the simulation",
          .start_timeout_s = costs.start_timeout_s,
          .silence_warning_s = costs.limits.silence_warning_s,
          .lost_after_s = costs.limits.lost_after_s,
          .server_name = "rank 0 on " + SimulatedHello::host_name(0)};
}

}  // namespace

ControlPlane::ControlPlane(const Cluster& cluster, const ControlCosts& costs)
    : cluster_(cluster),
      costs_(costs),
      membership_(options_of(cluster, costs), "the simulated coordinator", SimulatedHello::of(cluster, 0)),
      random_(cluster.seed),
      reached_ns_(StartProgram::kMilestones, 0),
      is_victim_(static_cast<std::size_t>(cluster.ranks())) {
  for (int rank = 0; rank < cluster_.ranks(); ++rank) {
    ranks_.push_back(std::make_unique<Rank>(cluster_, rank, costs_.limits));
    everyone_.push_back(rank);
  }
}

ControlPlane::~ControlPlane() = default;

int64_t ControlPlane::reached_ns(StartProgram::Milestone milestone) const {
  return reached_ns_[static_cast<std::size_t>(milestone)];
}

// Late ranks are chosen as those of a simulated collective are: more of them include those of a smaller number.
Status ControlPlane::start() {
  std::vector<int> order = everyone_;
  std::shuffle(order.begin(), order.end(), random_);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool is_late = static_cast<int>(i) < cluster_.stragglers;
    add(is_late ? to_ns(cluster_.straggler_delay_s) : 0, Event::Kind::call, order[i]);
  }
  while (failure_.ok() && in_world_ < cluster_.ranks()) {
    if (!step(to_ns(100 * costs_.start_timeout_s))) {
      return Status(Code::internal, "the simulated start does not end: no rank sends anything any more");
    }
  }
  return failure_;
}

int64_t ControlPlane::most_messages() const {
  int64_t most = 0;
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank) most = std::max(most, ranks_[rank]->messages);
  return most;
}

// ---- Events ----

void ControlPlane::add(int64_t moment, Event::Kind kind, int rank, Message message, int input) {
  events_.push({moment, next_event_++, kind, rank, input, std::move(message)});
}

// Runs the next event. False if there is none, or if it is later than the limit.
bool ControlPlane::step(int64_t limit_ns) {
  if (events_.empty() || events_.top().moment > limit_ns) return false;
  Event event = events_.top();
  events_.pop();
  now_ns_ = event.moment;
  run(std::move(event));
  return true;
}

void ControlPlane::run(Event event) {
  if (event.kind == Event::Kind::to_server) return arrive(std::move(event));
  if (event.kind == Event::Kind::round) return run_round();
  if (event.kind == Event::Kind::lose) return lose_victims();
  Rank& rank = *ranks_[static_cast<std::size_t>(event.rank)];
  if (!rank.is_alive) return;
  switch (event.kind) {
    case Event::Kind::call:
      return call(event.rank);
    case Event::Kind::greeting:
      return send_to_server(event.rank, Input::Kind::proof, kHandshakeBytes, nullptr);
    case Event::Kind::answer:
      rank.protocol.begin();
      return send_queued(event.rank);
    case Event::Kind::message:
      return receive(event.rank, *event.message);
    case Event::Kind::closed:
      rank.protocol.closed(now_ns_);
      return take_events(event.rank);
    default:
      return watch(event.rank);
  }
}

int64_t ControlPlane::latency_ns(int rank) {
  const double latency = cluster_.latency_s(0, rank);
  if (cluster_.noise == 0) return to_ns(latency);
  const double fraction = (static_cast<double>(random_() >> 11) + 1) * 0x1p-53;
  return to_ns(latency * (1 - cluster_.noise * std::log(fraction)));
}

// Messages of one connection arrive in the order in which they were sent.
void ControlPlane::send_to_server(int rank, Input::Kind kind, std::size_t bytes, Message message) {
  const ClusterLink& link = link_of(rank);
  const double transfer_s = link.overhead_s + static_cast<double>(bytes) / link.bytes_per_s;
  Rank& from = *ranks_[static_cast<std::size_t>(rank)];
  from.last_to_server_ns = std::max(from.last_to_server_ns, now_ns_ + to_ns(transfer_s) + latency_ns(rank));
  add(from.last_to_server_ns, Event::Kind::to_server, rank, std::move(message), static_cast<int>(kind));
}

// `leaves_ns`: when the coordinator's thread has written it.
void ControlPlane::send_to_rank(int rank, Event::Kind kind, std::size_t bytes, int64_t leaves_ns, Message message) {
  const ClusterLink& link = link_of(rank);
  int64_t& free_ns = cluster_.is_local(0, rank) ? memory_free_ns_ : card_free_ns_;
  free_ns = std::max(free_ns, leaves_ns) + to_ns(static_cast<double>(bytes) / link.bytes_per_s);
  Rank& to = *ranks_[static_cast<std::size_t>(rank)];
  const int64_t arrives = free_ns + latency_ns(rank) + to_ns(link.overhead_s);
  to.last_to_rank_ns = std::max(to.last_to_rank_ns, arrives);
  add(to.last_to_rank_ns, kind, rank, std::move(message));
}

// ---- The coordinator ----

void ControlPlane::plan_round(int64_t moment) {
  moment = std::max({moment, busy_until_ns_, now_ns_});
  if (round_at_ns_ >= 0 && round_at_ns_ <= moment) return;
  round_at_ns_ = moment;
  add(moment, Event::Kind::round, -1);
}

// A call that finds the queue full is dropped by the kernel, and repeated.
void ControlPlane::arrive(Event event) {
  if (!serves_) return;
  const auto kind = static_cast<Input::Kind>(event.input);
  if (kind == Input::Kind::accept) {
    if (calls_in_queue_ == costs_.accept_queue) {
      ++traffic_.refused_calls;
      return add(now_ns_ + kRepeated_ns, Event::Kind::call, event.rank);
    }
    ++calls_in_queue_;
  }
  inputs_.push_back({kind, event.rank, std::move(event.message)});
  plan_round(now_ns_);
}

void ControlPlane::run_round() {
  if (now_ns_ != round_at_ns_) return;  // an earlier round was planned after this one
  round_at_ns_ = -1;
  if (!serves_) return;
  int64_t now = now_ns_;
  for (int i = 0; i < kEventsOfRound && !inputs_.empty(); ++i) {
    const Input input = std::move(inputs_.front());
    inputs_.pop_front();
    take(input, now);
  }
  membership_.tick(now);
  flush(now);
  busy_until_ns_ = now;
  if (!inputs_.empty()) return plan_round(now);
  if (const Deadline next = membership_.next(); !next.is_never()) plan_round(next.moment_ns());
}

void ControlPlane::take(const Input& input, int64_t& now) {
  const JobMembership::Peer peer = kFirstPeer + static_cast<JobMembership::Peer>(input.rank);
  Rank& rank = *ranks_[static_cast<std::size_t>(input.rank)];
  if (input.kind == Input::Kind::closed) return membership_.closed(peer);
  if (input.kind != Input::Kind::message) {
    now += to_ns(costs_.handshake_s / 2);
    const bool is_first = input.kind == Input::Kind::accept;
    if (is_first) --calls_in_queue_;
    return send_to_rank(input.rank, is_first ? Event::Kind::greeting : Event::Kind::answer, kHandshakeBytes, now,
                        nullptr);
  }
  ++traffic_.received;
  now += to_ns(costs_.message_s);
  if (std::exchange(rank.is_member, true)) {
    note_failure(membership_.receive(peer, *input.message, now));
    return;
  }
  connected_ns_ = std::max(connected_ns_, now);
  membership_.greet(peer, input.message->members.front(), now, input.message->number);
}

// Sends what the round has caused, and what the connections that it closes cause. A message to many ranks is encoded
// once. A long one is also digested once, and each connection seals the digest.
void ControlPlane::flush(int64_t& now) {
  while (true) {
    MessageEncoder encoder;
    const auto outgoing = membership_.take_outgoing();
    const auto hang_ups = membership_.take_hang_ups();
    if (outgoing.empty() && hang_ups.empty()) return;
    for (const JobMembership::Outgoing& one : outgoing) {
      const std::size_t encoded = encoder.encoded();
      const SharedMessage message = encoder.encode(one.message);
      const std::size_t bytes = message->bytes().size() + kFrameHead;
      const double seal_s = static_cast<double>(bytes) / costs_.seal_bytes_per_s;
      now += to_ns(costs_.message_s);
      if (!message->is_long() || encoder.encoded() > encoded) now += to_ns(seal_s);
      if (message->is_long()) now += to_ns(static_cast<double>(bytes) / costs_.write_bytes_per_s);
      ++traffic_.sent;
      traffic_.sent_bytes += static_cast<int64_t>(bytes);
      send_to_rank(static_cast<int>(one.peer - kFirstPeer), Event::Kind::message, bytes, now, one.message);
    }
    for (const JobMembership::Peer peer : hang_ups) {
      send_to_rank(static_cast<int>(peer - kFirstPeer), Event::Kind::closed, kFrameHead, now, nullptr);
      membership_.closed(peer);
    }
  }
}

}  // namespace fdl
