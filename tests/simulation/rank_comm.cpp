// A simulated rank makes communicators as Runtime::connect(), commit() and outcome() do, and calls collectives on them.
#include <algorithm>
#include <charconv>

#include "tests/simulation/job.h"
#include "tests/simulation/rank.h"

namespace fdl::simulation {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr int64_t kStart = 30 * kSecond;
constexpr int64_t kPublish = 30 * kSecond;
constexpr int64_t kLaterReport = kSecond;
constexpr int64_t kGrace = 2 * kSecond;

// What a rank adds to a collective: small numbers, so that sums are exact.
int64_t addend(int rank, uint64_t number) { return (rank + 1) * 1000 + static_cast<int64_t>(number); }

}  // namespace

bool says_late(const Status& decision) {
  return decision.code() == Code::timeout && decision.text().find(" not made this call") != std::string::npos;
}

Comm* Rank::comm_of(const std::string& id) {
  const auto found = std::ranges::find_if(comms_, [&](const auto& comm) { return comm->id == id; });
  return found == comms_.end() ? nullptr : found->get();
}

int64_t Rank::decision_deadline() const { return clock() + seconds_to_ns(2 * kLimits.lost_after_s) + 10400 * kMs; }

// ---- Making one ----

Task<Status> Rank::make_comm(std::string id, std::vector<int> members, bool is_of_group) {
  std::vector<int> others = members;
  std::erase(others, rank_);
  auto watch = SetupWatch::make(others, id);
  if (!watch.ok()) co_return watch.status();
  std::shared_ptr<SetupWatch> set_up = watch.take();
  link_->protocol().add_watch(set_up, clock());
  next_watch_ns_ = 0;
  auto made = std::make_unique<Comm>();
  made->id = id;
  made->begun_ns = simulation().now();
  made->members = members;
  made->is_of_group = is_of_group;
  made->mine = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
  Comm& comm = *made;
  comms_.push_back(std::move(made));
  simulation().tell("{} makes {} of {} ranks", name(), id, members.size());
  const int64_t limit = clock() + kStart;
  // `later` is no part of an interrupt, as Deadline::shifted_by_ns() has it.
  const Limit until = [set_up, limit](int64_t later) {
    return std::min(limit + later, set_up->interrupt().moment_ns.load());
  };
  auto connecting = connect_comm(comm, until);
  Status status = co_await connecting;
  if (status.ok()) {
    comm.is_made = true;  // from here on news of ranks interrupt it
    if (is_of_group) make_group(comm);
    auto committing = commit(comm, until);
    status = co_await committing;
  }
  if (status.ok()) {
    made_.insert(key(comm));
    co_return Status();
  }
  auto ending = outcome(comm, set_up, status);
  Status failed = co_await ending;
  fail_comm(comm, failed);
  comm.is_made = false;
  co_return failed;
}

// The members exchange addresses through the store; of two, the lower one calls.
Task<Status> Rank::connect_comm(Comm& comm, Limit until) {
  CoordinatorMessage publish{.kind = Kind::publish};
  publish.key = comm.id + "/" + std::to_string(comm.mine);
  publish.value = "an address";
  const int64_t publish_limit = clock() + kPublish;
  auto publishing = ask(std::move(publish), {}, [publish_limit] { return publish_limit; });
  auto published = co_await publishing;
  if (!published.ok()) co_return published.status();
  CoordinatorMessage fetch{.kind = Kind::fetch_many};
  fetch.number = until(0) - clock();
  fetch.key = comm.id + "/";
  for (int rank = 0; rank < static_cast<int>(comm.members.size()); ++rank) {
    if (rank != comm.mine) fetch.ranks.push_back(rank);
  }
  const auto with_grace = [until] { return until(kGrace); };
  auto fetching = ask(std::move(fetch), {}, with_grace);
  auto fetched = co_await fetching;
  if (!fetched.ok()) co_return fetched.status();
  if (!fetched->ranks.empty()) co_return late(comm, fetched->ranks.front(), "has not published its address");
  for (int rank = comm.mine + 1; rank < static_cast<int>(comm.members.size()); ++rank) call(comm, rank);
  const auto are_connected = [&comm] { return comm.peers.size() + 1 == comm.members.size(); };
  auto until_connected = wait(are_connected, [until] { return until(0); });
  co_await until_connected;
  if (are_connected()) co_return Status();
  int missing = comm.mine == 0 ? 1 : 0;
  while (comm.peers.contains(missing) || missing == comm.mine) ++missing;
  co_return late(comm, missing, "has not connected");
}

Status Rank::late(const Comm& comm, int rank, const std::string& what) const {
  const int world_rank = comm.members[static_cast<std::size_t>(rank)];
  return Status::blame(world_rank, host_name_of(world_rank), Code::timeout, name_of(world_rank) + " " + what);
}

std::string Rank::host_name_of(int world_rank) const {
  return job_.hello_of(*world_->members[static_cast<std::size_t>(world_rank)], world_rank, *world_).host_name;
}
std::string Rank::name_of(int world_rank) const {
  return fmt::format("rank {} ({})", world_rank, host_name_of(world_rank));
}

void Rank::call(Comm& comm, int rank) {
  Rank& callee = *world_->members[static_cast<std::size_t>(comm.members[static_cast<std::size_t>(rank)])];
  const std::string id = comm.id;
  const World* world = world_;
  network().connect(
      *this, &callee,
      [this, id, rank, world](End end) {
        Comm* found = world == world_ ? comm_of(id) : nullptr;
        if (found == nullptr || !found->failure.ok() || found->group || found->peers.contains(rank)) {
          return end.close();
        }
        end.send({.kind = kIntroduction, .bytes = fmt::format("{}/{}/{}", world_->name, id, found->mine)});
        found->peers[rank] = {.end = end};
        wake();
      },
      [this, id, rank, world] {
        simulation().after(100 * kMs, [this, id, rank, world] {
          Comm* found = process().is_alive && world == world_ ? comm_of(id) : nullptr;
          if (found != nullptr && found->failure.ok()) call(*found, rank);
        });
      });
}

bool Rank::accept(const End& end) {
  if (!process().is_alive) return false;
  incoming_.push_back(end);
  wake();
  return true;
}

// A connection of another world, or of a communicator that this rank does not make, is closed.
void Rank::place_incoming() {
  std::erase_if(incoming_, [this](const End& end) {
    if (!end.has_news()) return false;
    std::vector<Packet> packets;
    const End::State state = end.receive(packets);
    if (!packets.empty() && packets.front().kind >= kFirstRecovery) {
      take_recovery(end, std::move(packets));
      return true;
    }
    const std::string text = packets.empty() ? "" : packets.front().bytes;
    const std::size_t slash = text.rfind('/');
    Comm* comm = nullptr;
    int from = -1;
    for (const auto& one : comms_) {
      if (slash == std::string::npos || text.substr(0, slash) != world_->name + "/" + one->id) continue;
      std::from_chars(text.data() + slash + 1, text.data() + text.size(), from);
      comm = one.get();
    }
    if (comm == nullptr || !comm->failure.ok() || comm->group || comm->peers.contains(from)) {
      end.close();
      return true;
    }
    Comm::Peer& peer = comm->peers[from] = {.end = end};
    packets.erase(packets.begin());
    take(peer, packets);
    if (state != End::State::open) peer.is_broken = true;
    return true;
  });
}

// As Runtime::commit().
Task<Status> Rank::commit(Comm& comm, Limit until) {
  const std::string prefix = comm.id + " made/";
  const int64_t publish_limit = clock() + kPublish;
  if (comm.mine > 0) {
    CoordinatorMessage publish{.kind = Kind::publish};
    publish.key = prefix + std::to_string(comm.mine);
    publish.value = "1";
    auto publishing = ask(std::move(publish), {}, [publish_limit] { return publish_limit; });
    auto published = co_await publishing;
    if (!published.ok()) co_return published.status();
    CoordinatorMessage fetch{.kind = Kind::fetch};
    fetch.key = prefix + "all";
    auto fetching = ask(std::move(fetch), {}, [until] { return until(2 * kLaterReport); });
    auto all = co_await fetching;
    co_return all.status();
  }
  CoordinatorMessage fetch{.kind = Kind::fetch_many};
  fetch.number = until(kLaterReport) - clock();
  fetch.key = prefix;
  for (int rank = 1; rank < static_cast<int>(comm.members.size()); ++rank) fetch.ranks.push_back(rank);
  auto collecting = ask(std::move(fetch), {}, [until] { return until(kLaterReport + kGrace); });
  auto words = co_await collecting;
  if (!words.ok()) co_return words.status();
  if (!words->ranks.empty()) co_return late(comm, words->ranks.front(), "has not finished its part in time");
  CoordinatorMessage publish{.kind = Kind::publish};
  publish.key = prefix + "all";
  publish.value = "1";
  auto publishing = ask(std::move(publish), {}, [publish_limit] { return publish_limit; });
  auto published = co_await publishing;
  co_return published.status();
}

// As Runtime::outcome() and request_decision().
Task<Status> Rank::outcome(Comm& comm, std::shared_ptr<SetupWatch> watch, Status failure) {
  const bool is_own = failure.code() != Code::timeout && failure.code() != Code::transport &&
                      failure.code() != Code::peer_lost && failure.code() != Code::authentication;
  const Status told = watch->why();
  if (failure.code() == Code::shut_down && !told.ok()) {
    report(comm, told);
    co_return told;
  }
  if (is_own) {
    report(comm, failure);
    co_return failure;
  }
  const int64_t limit = decision_deadline();
  const auto is_told = [watch] { return !watch->why().ok(); };
  link_->protocol().probe({}, clock());
  do {
    // Not in step with the probes, which another thread sends.
    auto until_told = wait(is_told, std::min(limit, clock() + kSuspectAfter + simulation().between(0, 20 * kMs)));
    co_await until_told;
  } while (!is_told() && link_->protocol().has_open_probe() && clock() < limit);
  if (!is_told()) {
    report(comm, failure, watch.get());
    auto until_decided = wait(is_told, limit);
    co_await until_decided;
  }
  const Status gone = watch->why();
  check_late(comm.id, gone);
  const bool is_departure = gone.code() == Code::shut_down && failure.code() == Code::transport;
  if (gone.ok() || is_departure) co_return failure;
  if (gone.code() == Code::shut_down) report(comm, gone);
  co_return gone;
}

// ---- Using one ----

Task<Status> Rank::collective(Comm& comm, Step step) {
  const uint64_t number = ++comm.begun;
  const int root = step.root % static_cast<int>(comm.members.size());
  const bool is_broadcast = step.kind == Step::Kind::broadcast;
  const int64_t mine = addend(rank_, number);
  const auto sends = [&](int /*to*/) { return !is_broadcast || root == comm.mine; };
  const auto expects = [is_broadcast, root](int from) { return !is_broadcast || root == from; };
  const auto awaited = [&comm, expects] {
    std::set<int> ranks;
    for (const auto& [rank, peer] : comm.peers) {
      if (expects(rank) && peer.values.empty()) ranks.insert(comm.members[static_cast<std::size_t>(rank)]);
    }
    return ranks;
  };
  simulation().tell("{} begins {} {} on {}", name(), is_broadcast ? "broadcast" : "allreduce", number, comm.id);
  const bool has_begun = comm.failure.ok();
  if (has_begun) {
    for (const auto& [rank, peer] : comm.peers) {
      if (sends(rank)) peer.end.send({.kind = kValue, .bytes = fmt::format("{} {}", number, mine)});
    }
    comm.waits = true;
    comm.watched = clock();
    comm.awaited = awaited();
    drive(comm);
    auto until_done = wait(
        [&comm, awaited] {
          comm.awaited = awaited();
          return !comm.failure.ok() || comm.awaited.empty();
        },
        kNever);
    co_await until_done;
    comm.waits = false;
  }
  // A result that had arrived before the news of a loss is returned.
  if (!comm.failure.ok() && (!has_begun || !awaited().empty())) {
    auto deciding = await_decision(comm, comm.failure);
    co_return co_await deciding;
  }
  int64_t sum = !is_broadcast || root == comm.mine ? mine : 0;
  int64_t expected = 0;
  for (int rank = 0; rank < static_cast<int>(comm.members.size()); ++rank) {
    if (expects(rank)) expected += addend(comm.members[static_cast<std::size_t>(rank)], number);
    if (rank == comm.mine || !expects(rank)) continue;
    auto& values = comm.peers[rank].values;
    if (values.front().first != number) simulation().violated(name() + ": a collective got another one's value");
    sum += values.front().second;
    values.pop_front();
  }
  if (sum != expected) simulation().violated(fmt::format("{}: a sum of {} is {}", name(), expected, sum));
  simulation().count("collectives");
  co_return Status();
}

// As Runtime::await_decision().
Task<Status> Rank::await_decision(Comm& comm, Status failure) {
  const std::string id = comm.id;
  // Another thread may close the connections before this one reports.
  if (simulation().percent(20)) {
    fail_comm(comm, failure);
    auto pause = sleep(simulation().between(0, 200 * kMs));
    co_await pause;
  }
  report(comm, failure);
  fail_comm(comm, failure);
  const int64_t began = clock();
  const auto is_decided = [this, id] { return decisions_->is_closed() || decisions_->find(id).has_value(); };
  // As FailureDecisions::wait(): a pause counts as one step.
  for (int64_t left = decision_deadline() - began; left > 0 && !is_decided(); left -= kSecond) {
    auto until_decided = wait(is_decided, clock() + std::min(left, kSecond));
    co_await until_decided;
  }
  const auto decision = decisions_->find(id);
  if (!decision && !decisions_->is_closed() && link_->protocol().is_open()) {
    simulation().tell("{}: no decision on {} after {:.1f} s", name(), id, static_cast<double>(clock() - began) / 1e9);
    simulation().count("decisions that never came");
  }
  co_return decision ? *decision : failure;
}

// A rank that has begun a set-up may be named as one that has not only if it began while it was asked.
void Rank::check_late(const std::string& comm, const Status& decision) {
  constexpr int64_t kAsked = 5 * kSecond;
  if (!says_late(decision)) return;
  simulation().count("set-ups without some rank");
  const int64_t decided = world_->decided_ns.try_emplace(comm, simulation().now()).first->second;
  Rank& named = *world_->members[static_cast<std::size_t>(decision.error().culprit_rank)];
  const Comm* theirs = named.comm_of(comm);
  if (theirs == nullptr || theirs->begun_ns + kAsked > decided) return;
  simulation().violated(
      fmt::format("{} is said not to have begun {}: {}", named.process().name, comm, decision.text()));
}

void Rank::report(Comm& comm, const Status& failure, const SetupWatch* set_up) {
  if (std::exchange(comm.is_reported, true)) return;
  simulation().tell("{} reports {}: {}", name(), comm.id, failure.text());
  if (set_up != nullptr) {
    link_->protocol().report(*set_up, failure, clock());
  } else {
    link_->protocol().report(comm.id, failure, clock());
  }
  link_->carry_out();
  next_watch_ns_ = 0;
}

// News of the coordinator end a communicator.
void Rank::interrupt(Comm& comm, const Status& why) {
  if (!comm.is_made) return;
  if (!comm.is_of_group) decisions_->deliver(comm.id, why);
  if (why.code() == Code::peer_lost && comm.waits) take_arrived(comm);
  fail_comm(comm, why);
}

// As Communicator::State::finish_arrived().
void Rank::take_arrived(Comm& comm) {
  for (auto& [rank, peer] : comm.peers) {
    std::vector<Packet> packets;
    if (peer.end.has_news()) static_cast<void>(peer.end.receive(packets));
    take(peer, packets);
  }
}

// A rank that ends in good order says so on its connections.
void Rank::say_goodbye() {
  for (const auto& comm : comms_) {
    if (comm->group) {
      comm->group->comm().interrupt(Status(Code::shut_down, name() + " has shut farandole down"));
      comm->group->comm().progress();
    }
    for (const auto& [rank, peer] : comm->peers) {
      peer.end.send({.kind = kGoodbye});
      peer.end.close();
    }
  }
}

// The first reason stays. Its connections are closed.
void Rank::fail_comm(Comm& comm, const Status& why) {
  if (comm.failure.ok()) comm.failure = why;
  if (comm.group) comm.group->named().fail_all(why);
  for (const auto& [rank, peer] : comm.peers) {
    if (peer.end) peer.end.close();
  }
}

void Rank::drive_comms() {
  for (const auto& comm : comms_) {
    if (!comm->group) drive(*comm);
  }
  drive_groups();
}

void Rank::take(Comm::Peer& peer, const std::vector<Packet>& packets) {
  for (const Packet& packet : packets) {
    if (packet.kind == kGoodbye) peer.has_left = true;
    if (packet.kind == kSlice) peer.slices.push_back(packet);
    if (packet.kind != kValue) continue;
    std::pair<uint64_t, int64_t> value{};
    const char* end = packet.bytes.data() + packet.bytes.size();
    const auto number = std::from_chars(packet.bytes.data(), end, value.first);
    std::from_chars(number.ptr + 1, end, value.second);
    peer.values.push_back(value);
  }
}

// A connection that has ended matters when a collective waits for it.
void Rank::drive(Comm& comm) {
  if (!comm.failure.ok()) return;
  for (auto& [rank, peer] : comm.peers) {
    if (peer.end.has_news()) {
      std::vector<Packet> packets;
      if (peer.end.receive(packets) != End::State::open) peer.is_broken = true;
      take(peer, packets);
      if (!packets.empty()) comm.watched = clock();
    }
    const int world_rank = comm.members[static_cast<std::size_t>(rank)];
    if (!peer.is_broken || !comm.waits || !peer.values.empty()) continue;
    if (!comm.awaited.contains(world_rank)) continue;
    const std::string how = peer.has_left ? " has left" : " closed the connection";
    comm.failure = Status::blame(world_rank, host_name_of(world_rank),
                                 peer.has_left ? Code::shut_down : Code::peer_lost, name_of(world_rank) + how);
    return;
  }
}

}  // namespace fdl::simulation
