// ControlPlane, part 2: what ranks do with the messages of the coordinator, and how they find that ranks are gone.
#include <fmt/core.h>

#include <algorithm>

#include "simulate/control/simulated_rank.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr std::size_t kCallBytes = 64;
constexpr int64_t kSecond_ns = 1'000'000'000;

}  // namespace

// ---- The start ----

// The coordinator can accept the call when the kernels have exchanged three packets.
void ControlPlane::call(int rank) {
  Rank& caller = *ranks_[static_cast<std::size_t>(rank)];
  caller.last_to_server_ns = now_ns_ + latency_ns(rank) + latency_ns(rank) + latency_ns(rank);
  add(caller.last_to_server_ns, Event::Kind::to_server, rank, nullptr, static_cast<int>(Input::Kind::accept));
}

// The table stays with the coordinator's message: a rank of the simulation has no use for it, and copies for all ranks
// would take more memory than a machine has. Its bytes are sent.
void ControlPlane::receive(int rank, const CoordinatorMessage& message) {
  Rank& here = *ranks_[static_cast<std::size_t>(rank)];
  ++here.messages;
  CoordinatorMessage copy{.kind = message.kind, .id = message.id, .number = message.number, .rank = message.rank};
  copy.key = message.key;
  copy.why = message.why;
  copy.ranks = message.ranks;
  copy.members = message.members;
  copy.hosts = message.hosts;
  if (message.kind == Kind::lost_together) copy.values = message.values;  // the facts of others are not looked at
  const bool is_welcome = message.kind == Kind::welcome;
  std::vector<CoordinatorMessage> messages;
  messages.push_back(std::move(copy));
  here.protocol.receive(std::move(messages), now_ns_);
  note_failure(here.protocol.refusal());
  take_events(rank);
  if (is_welcome || (here.open_request != 0 && here.protocol.is_settled(here.open_request, {}))) go_on(rank);
  send_queued(rank);
}

// Takes the reply, and makes the next request.
void ControlPlane::go_on(int rank) {
  Rank& here = *ranks_[static_cast<std::size_t>(rank)];
  if (here.is_in_world) return;
  if (here.open_request != 0) {
    const auto reply = here.protocol.take_reply(here.open_request, {});
    here.open_request = 0;
    if (!reply.ok()) return note_failure(reply.status());
    if (!reply->ranks.empty()) {
      return note_failure(Status(
          Code::timeout, fmt::format("rank {} has not finished its part of the start in time", reply->ranks.front())));
    }
  }
  const auto request = here.program.next(static_cast<int64_t>((costs_.start_timeout_s + 2) * 1e9));
  for (; here.reached < here.program.reached(); ++here.reached) {
    reached_ns_[static_cast<std::size_t>(here.reached)] = now_ns_;
  }
  if (!request) {
    here.is_in_world = true;
    ++in_world_;
    if (first_in_world_ns_ < 0) first_in_world_ns_ = now_ns_;
    return;
  }
  const auto id = here.protocol.request(*request);
  if (!id.ok()) return note_failure(id.status());
  here.open_request = *id;
}

void ControlPlane::send_queued(int rank) {
  Rank& here = *ranks_[static_cast<std::size_t>(rank)];
  for (CoordinatorMessage& message : here.protocol.take_outgoing()) {
    ++here.messages;
    const std::size_t bytes = encode(message).size() + kFrameHead;
    send_to_server(rank, Input::Kind::message, bytes, std::make_shared<const CoordinatorMessage>(std::move(message)));
  }
}

void ControlPlane::note_failure(const Status& why) {
  if (failure_.ok() && !why.ok()) failure_ = why;
}

// ---- Losses ----

Status ControlPlane::lose(const std::vector<int>& victims, int64_t moment_ns, bool is_silent, int64_t limit_ns) {
  victims_ = victims;
  is_silent_ = is_silent;
  for (const int victim : victims) is_victim_[static_cast<std::size_t>(victim)] = true;
  unaware_ = cluster_.ranks() - static_cast<int>(victims.size());
  lost_ns_ = now_ns_ + moment_ns;
  for (const auto& rank : ranks_) rank->messages = 0;
  add(lost_ns_, Event::Kind::lose, -1);
  while (failure_.ok() && unaware_ > 0) {
    if (step(lost_ns_ + limit_ns)) continue;
    const auto unaware = std::ranges::find_if(ranks_, [](const auto& rank) { return rank->waits; });
    return Status(Code::timeout, fmt::format("rank {} does not know of the loss after {} s", unaware - ranks_.begin(),
                                             limit_ns / kSecond_ns));
  }
  return failure_;
}

// The kernel closes the connections of a process that ends. Of a host without power, nothing is sent any more.
void ControlPlane::lose_victims() {
  is_waiting_ = true;
  const bool serves = !is_victim_.front();
  int64_t closing_ns = now_ns_;
  for (int rank = 0; rank < cluster_.ranks(); ++rank) {
    Rank& here = *ranks_[static_cast<std::size_t>(rank)];
    if (is_victim_[static_cast<std::size_t>(rank)]) {
      here.is_alive = false;
      if (serves && !is_silent_) send_to_server(rank, Input::Kind::closed, kCallBytes, nullptr);
      continue;
    }
    here.waits = true;
    add(now_ns_ + usual_probe_interval_ns(costs_.limits.suspect_after_s), Event::Kind::watch, rank);
    if (serves || is_silent_) continue;
    closing_ns += static_cast<int64_t>(costs_.message_s * 1e9);
    send_to_rank(rank, Event::Kind::closed, kCallBytes, closing_ns, nullptr);
  }
  serves_ = serves;
}

// As Runtime::on_suspect() (src/runtime/lifecycle/runtime_comms.cpp): each rank awaits its neighbour in the ring.
void ControlPlane::watch(int rank) {
  Rank& here = *ranks_[static_cast<std::size_t>(rank)];
  if (!here.waits) return;
  const int64_t usual_ns = usual_probe_interval_ns(costs_.limits.suspect_after_s);
  const int64_t lost_after_ns = seconds_to_ns(costs_.limits.lost_after_s);
  const int size = cluster_.ranks();
  const int64_t turns = probe_interval_ns(static_cast<std::size_t>(size), usual_ns, lost_after_ns) / usual_ns;
  ++here.turns;
  if (turns <= 1 || here.turns % turns == rank % turns || here.protocol.has_open_probe()) {
    std::vector<int> others = everyone_;
    others.erase(others.begin() + rank);
    std::vector<int> probed = ranks_to_probe(std::move(others), rank);
    const int awaited = (rank + size - 1) % size;
    probed.push_back(awaited);
    here.protocol.probe(probed, now_ns_);
    CoordinatorMessage query{.kind = Kind::sends_query};
    query.key = "comm 0";
    query.ranks = {awaited};
    here.protocol.tell(query);
  }
  if (here.protocol.must_give_up()) here.protocol.give_up(now_ns_);
  take_events(rank);
  send_queued(rank);
  if (here.waits) add(now_ns_ + usual_ns, Event::Kind::watch, rank);
}

void ControlPlane::take_events(int rank) {
  Rank& here = *ranks_[static_cast<std::size_t>(rank)];
  for (const CoordinatorEvent& event : here.protocol.take_events()) {
    if (event.kind == CoordinatorEvent::Kind::lost) note_gone(rank, event);
    if (event.kind == CoordinatorEvent::Kind::silent) last_warned_ns_ = now_ns_;
    if (event.kind != CoordinatorEvent::Kind::sends_query) continue;
    CoordinatorMessage reply{.kind = Kind::sends_reply, .rank = event.rank};
    reply.key = event.comm;
    here.protocol.tell(reply);
  }
}

// The coordinator tells all ranks of every process whose connection ends. Of several silent ranks, a rank needs to
// learn of one: its allreduce then ends, and nothing waits for the others. Each rank finds the end of the coordinator
// by itself, and no process is left that could tell it of other ranks.
std::size_t ControlPlane::victims_to_know() const { return is_silent_ || is_victim_.front() ? 1 : victims_.size(); }

void ControlPlane::note_gone(int rank, const CoordinatorEvent& event) {
  Rank& here = *ranks_[static_cast<std::size_t>(rank)];
  const bool is_right = event.rank >= 0 && is_victim_[static_cast<std::size_t>(event.rank)];
  if (!is_right) {
    return note_failure(Status(Code::internal, fmt::format("rank {} reports the loss of rank {}, which is there: {}",
                                                           rank, event.rank, event.why.text())));
  }
  here.waits = false;  // its allreduce has failed
  if (!here.knows.insert(event.rank).second || here.knows.size() != victims_to_know()) return;
  if (first_knows_ns_ < 0) first_knows_ns_ = now_ns_;
  last_knows_ns_ = now_ns_;
  --unaware_;
}

}  // namespace fdl
