// A simulated rank recovers in place as Runtime::shrink() and SurvivorConnections do: the shipped Survivors and
// SurvivorCalls between simulated connections.
#include <algorithm>

#include "tests/simulation/job.h"
#include "tests/simulation/rank.h"

namespace fdl::simulation {
namespace {

constexpr int64_t kConnect = kSecond;
constexpr int64_t kTimeout = 30 * kSecond;
constexpr int64_t kServerGrace = 2 * kSecond;
constexpr int64_t kAddress = 10 * kSecond;
constexpr int64_t kLastMessages = kSecond;
constexpr double kFirstArrival_s = 3;

const char* name_of_kind(SurvivorMessage::Kind kind) {
  switch (kind) {
    case SurvivorMessage::Kind::here:
      return "here";
    case SurvivorMessage::Kind::decided:
      return "decided";
    case SurvivorMessage::Kind::address:
      return "address";
    default:
      return "failed";
  }
}

bool may_be_a_loss(Code code) {
  return code == Code::peer_lost || code == Code::timeout || code == Code::transport || code == Code::shut_down ||
         code == Code::authentication;
}

}  // namespace

// Ranks are numbered as in the first world.
struct Rank::Recovery {
  struct Link {
    End end;
    bool is_connecting = false;
    uint64_t attempt = 0;
    int64_t until = 0;
  };
  Recovery(Survivors::Options options, int64_t now_ns)
      : survivors(options, now_ns), calls(survivors, options.me, kLostAfter) {}

  Survivors survivors;
  SurvivorCalls calls;  // addresses are indices of coordinators
  std::map<int, Link> links;
  bool reads = true;  // not while a world starts
  std::vector<std::unique_ptr<CoordinatorLink>> old_links;
};

Rank::~Rank() = default;

Task<Status> Rank::recover() {
  // The old world ends here, and is still served.
  auto ending_groups = end_groups(Status(Code::shut_down, name() + " makes a world of the survivors"), 0);
  co_await ending_groups;
  link_->protocol().leave();
  link_->carry_out();
  const std::vector<int> lost = link_->protocol().lost_ranks();
  CoordinatorActor* const old = world_->coordinator;
  const bool serves_old = old != nullptr && &old->process() == &process();
  if (!recovery_) {
    Survivors::Options options{.me = number_, .timeout_ns = kTimeout, .grace_ns = kServerGrace};
    options.round = round_;
    for (const Rank* member : world_->members) {
      options.members.push_back(member->number());
      options.names[member->number()] = member->name();
    }
    for (const int rank : lost) options.gone.insert(world_->members[static_cast<std::size_t>(rank)]->number());
    recovery_ = std::make_shared<Recovery>(std::move(options), clock());
  }
  recovery_->old_links.push_back(std::move(link_));
  say_goodbye();
  comms_.clear();
  const std::vector<Packet> early = std::exchange(recovery_packets_, {});
  read_recovery(early);
  simulation().tell("{} recovers", name());
  double arrival_s = kFirstArrival_s;
  Status status;
  for (std::size_t attempt = 0;; ++attempt) {
    world_arrival_s_ = arrival_s;
    auto joining = join(*recovery_);
    status = co_await joining;
    if (status.ok() || recovery_->survivors.state() == Survivors::State::failed) break;
    simulation().tell("{}: {}", name(), status.text());
    if (!may_be_a_loss(status.code()) || attempt == job_.size()) break;
    std::set<int> gone;
    if (link_) {
      for (const int rank : link_->protocol().lost_ranks()) {
        gone.insert(world_->members[static_cast<std::size_t>(rank)]->number());
      }
      auto ending = shut_down(kSecond);
      co_await ending;
      recovery_->old_links.push_back(std::move(link_));
    }
    say_goodbye();
    comms_.clear();
    recovery_->survivors.resume(gone, clock());
    arrival_s = std::min(2 * arrival_s, 30.0);
  }
  if (serves_old) {
    old->stop(kSecond);
    auto until_ended = wait([old] { return !old->is_serving(); }, kNever);
    co_await until_ended;
  }
  round_ = recovery_->survivors.round();
  // A rank whose start has failed sees that its connection ends, and calls again.
  for (const End& end : std::exchange(recovery_ends_, {})) end.close();
  for (const auto& [rank, link] : recovery_->links) {
    if (link.end) link.end.close();
  }
  recovery_.reset();
  co_return status;
}

// Gathers the survivors and starts their world.
Task<Status> Rank::join(Recovery& recovery) {
  Survivors& survivors = recovery.survivors;
  recovery.reads = true;
  auto until_gathered = wait([&survivors] { return survivors.state() != Survivors::State::gathering; }, kNever);
  co_await until_gathered;
  const auto is_sent = [this, &recovery] {
    return !recovery.calls.has_unsent() && recovery.survivors.state() != Survivors::State::gathering;
  };
  auto until_sent = wait(is_sent, clock() + kLastMessages);
  co_await until_sent;
  if (survivors.state() == Survivors::State::failed) co_return survivors.why();
  if (survivors.state() == Survivors::State::gathering) {
    co_return Status(Code::peer_lost, "the round was given up while its messages were sent");
  }
  World& world = job_.world_of(survivors.round(), survivors.members());
  world.arrival_timeout_s = world_arrival_s_;
  if (survivors.has_decided()) {
    if (world.coordinator == nullptr) job_.serve(world, process());
    recovery.calls.serve_at(std::to_string(job_.index_of(*world.coordinator)));
    auto until_shared = wait(is_sent, clock() + kLastMessages);
    co_await until_shared;
  } else {
    const uint64_t round = survivors.round();
    const auto is_known = [&recovery, round] {
      const Survivors& now = recovery.survivors;
      return recovery.calls.address() || now.is_gone(now.server()) || now.server() != now.members().front() ||
             now.state() == Survivors::State::failed || now.round() != round;
    };
    auto until_known = wait(is_known, clock() + kAddress);
    co_await until_known;
    if (survivors.state() == Survivors::State::failed) co_return survivors.why();
    if (!recovery.calls.address() || survivors.round() != round) {
      co_return Status(Code::peer_lost, "rank 0 of the new world did not give its address");
    }
  }
  recovery.reads = false;
  world_ = &world;
  rank_ = static_cast<int>(std::ranges::find(survivors.members(), number_) - survivors.members().begin());
  simulation().tell("{} starts as rank {} of {}", name(), rank_, world.name);
  auto starting = start();
  Status started = co_await starting;
  if (!started.ok()) note_start_failure(started);
  co_return started;
}

// While a world starts, its serving rank is looked for in between.
bool Rank::server_is_gone() const {
  return recovery_ && recovery_->survivors.is_gone(recovery_->survivors.members().front());
}

// ---- Connections ----

void Rank::drive_recovery() {
  if (!recovery_->reads && (rank_ == 0 || link_)) return;
  keep_recovery_links();
  std::vector<Packet> packets = std::exchange(recovery_packets_, {});
  for (const End& end : recovery_ends_) end.receive(packets);
  read_recovery(packets);
  recovery_->calls.report_refusals(clock());
  recovery_->survivors.tick(clock());
  keep_recovery_links();
}

void Rank::keep_recovery_links() {
  Recovery& recovery = *recovery_;
  std::set<int> paused;
  for (const int rank : recovery.calls.wanted()) {
    Recovery::Link& link = recovery.links[rank];
    if (link.end && link.end.has_news()) {
      link.end.close();
      link.end = {};
      recovery.calls.closed(rank);
    }
    if (link.is_connecting && clock() >= link.until) fail_recovery_link(rank, false);
    if (!link.end && !link.is_connecting && recovery.calls.may_call(rank, clock())) call_for_recovery(rank);
    if (link.end) send_recovery(link.end, recovery.calls.take_for(rank));
    if (link.is_connecting) wake_at(moment_of(link.until));
    if (!link.is_connecting && !link.end) paused.insert(rank);
  }
  const Deadline next = recovery.calls.next(paused).earlier(recovery.survivors.next());
  if (!next.is_never()) wake_at(moment_of(next.moment_ns()));
}

void Rank::send_recovery(const End& end, const std::vector<SurvivorMessage>& messages) {
  for (const SurvivorMessage& message : messages) {
    end.send({.kind = kFirstRecovery, .object = std::make_shared<const SurvivorMessage>(message)});
  }
}

void Rank::call_for_recovery(int rank) {
  Recovery::Link& link = recovery_->links[rank];
  link.is_connecting = true;
  recovery_->calls.begin(rank, clock());
  link.until = clock() + kConnect;
  const uint64_t attempt = ++link.attempt;
  const auto is_current = [this, rank, attempt] {
    return recovery_ && recovery_->links[rank].is_connecting && recovery_->links[rank].attempt == attempt;
  };
  network().connect(
      *this, &job_.rank(rank),
      [this, rank, is_current](End end) {
        if (!is_current()) return end.close();
        Recovery::Link& made = recovery_->links[rank];
        made.is_connecting = false;
        made.end = end;
        send_recovery(end, recovery_->calls.connected(rank));
        wake();
      },
      [this, rank, is_current] {
        if (is_current()) fail_recovery_link(rank, true);
        wake();
      });
}

void Rank::fail_recovery_link(int rank, bool is_refused) {
  recovery_->links[rank].is_connecting = false;
  if (recovery_->calls.failed(rank, is_refused, clock()) == SurvivorCalls::Loss::cut_off) {
    simulation().tell("{} cannot reach rank {}, which counts as lost", name(), rank);
  }
}

// A rank may call before this one does. What it sends waits.
void Rank::take_recovery(const End& end, std::vector<Packet> packets) {
  recovery_ends_.push_back(end);
  for (Packet& packet : packets) recovery_packets_.push_back(std::move(packet));
}

void Rank::read_recovery(const std::vector<Packet>& packets) {
  for (const Packet& packet : packets) {
    const auto& message = *std::static_pointer_cast<const SurvivorMessage>(packet.object);
    simulation().tell("{} reads of rank {}: {} in round {} of {} members", name(), message.from,
                      name_of_kind(message.kind), message.round, message.members.size());
    recovery_->calls.receive(message, clock());
  }
}

}  // namespace fdl::simulation
