// Each packet is one event when it arrives; faults change when, or whether, it does.
#include "tests/simulation/network.h"

#include <algorithm>

#include "tests/simulation/named/simulated_clock.h"

namespace fdl::simulation {
namespace {

constexpr int64_t kLongestRepetition = kSecond;  // between two attempts of a kernel to send a packet

}  // namespace

// ---- An actor ----

Simulation& Actor::simulation() const { return network_.simulation(); }
int64_t Actor::clock() const { return simulation().now() + network_.clock_offset(process_.host); }
int64_t Actor::moment_of(int64_t clock) const {
  return clock == kNever ? kNever : std::max<int64_t>(0, clock - network_.clock_offset(process_.host));
}

// A thread that is woken waits for a processor, usually not for long.
void Actor::wake_at(int64_t moment) {
  if (moment == kNever) return;
  moment = std::max(moment, simulation().now());
  if (moment >= wakes_at_) return;
  const bool is_busy = simulation().percent(3);
  moment += simulation().between(0, is_busy ? network_.options().hiccup : 30 * kUs);
  if (moment >= wakes_at_) return;
  wakes_at_ = moment;
  simulation().at(moment, [this, moment] {
    if (wakes_at_ == moment) run();
  });
}

void Actor::run() {
  wakes_at_ = kNever;
  if (!process_.is_alive) return;
  if (process_.paused_until > simulation().now()) return wake_at(process_.paused_until);
  network_.settle(process_);
  const SimulatedClock shows(clock());
  turn();
}

// ---- One end ----

void End::send(Packet packet) const {
  Connection::Side& there = connection->sides_[1 - side];
  if (connection->sides_[side].is_closed || there.is_closed) return;
  there.unsent.push_back(std::move(packet));
  connection->fill(1 - side);
}

End::State End::receive(std::vector<Packet>& packets) const {
  Connection::Side& here = connection->sides_[side];
  for (Packet& packet : here.arrived) packets.push_back(std::move(packet));
  const bool took_some = !here.arrived.empty();
  here.arrived.clear();
  // The other process is woken by the space in its buffer.
  if (took_some && !here.unsent.empty()) connection->sides_[1 - side].actor->wake();
  return here.state;
}

bool End::has_news() const {
  const Connection::Side& here = connection->sides_[side];
  return !here.arrived.empty() || here.state != State::open;
}

std::size_t End::unsent() const { return connection->sides_[1 - side].unsent.size(); }
void End::close() const { connection->close(side); }

// ---- A connection ----

void Connection::fill(int to) {
  Side& there = sides_[to];
  const auto room = static_cast<std::size_t>(network_.options().buffer);
  while (!there.unsent.empty() && there.flying.size() + there.arrived.size() < room) {
    push(to, {.packet = std::move(there.unsent.front())});
    there.unsent.pop_front();
  }
  if (sides_[0].unsent.empty() && sides_[1].unsent.empty()) {
    network_.full_.erase(number_);
  } else if (network_.full_.insert(number_).second) {
    network_.simulation().count("full buffers");
  }
}

void Connection::push(int to, Flying flying) {
  if (network_.is_finished_) return;
  Side& there = sides_[to];
  const int from_host = sides_[1 - to].actor->process().host;
  flying.arrives = network_.simulation().now() + network_.delay(from_host, there.actor->process().host);
  there.last_arrival = flying.arrives = std::max(flying.arrives, there.last_arrival);
  there.flying.push_back(std::move(flying));
  schedule(to);
}

void Connection::schedule(int to) {
  Side& there = sides_[to];
  if (there.is_flying || there.flying.empty()) return;
  there.is_flying = true;
  network_.simulation().at(there.flying.front().arrives, [self = shared_from_this(), to] { self->deliver(to); });
}

// What a cut has dropped is sent again after it, by a kernel that pauses between its attempts.
void Connection::deliver(int to) {
  Side& there = sides_[to];
  there.is_flying = false;
  if (there.flying.empty()) return;
  const int from_host = sides_[1 - to].actor->process().host;
  const int to_host = there.actor->process().host;
  if (network_.is_cut(from_host, to_host)) {
    const Network::Cut& cut = network_.cuts_[{from_host, to_host}];
    const int64_t pause = std::min(kLongestRepetition, (cut.until - cut.since) / 2);
    there.flying.front().arrives = there.last_arrival = cut.until + network_.simulation().between(1, pause + 1);
    return schedule(to);
  }
  Flying flying = std::move(there.flying.front());
  there.flying.pop_front();
  if (there.is_closed || there.state != End::State::open) return;
  if (flying.is_end) {
    there.state = End::State::closed;
  } else {
    there.arrived.push_back(std::move(flying.packet));
  }
  there.actor->wake();
  schedule(to);
}

// What did not fit into the buffer is lost.
void Connection::close(int side) {
  Side& here = sides_[side];
  if (std::exchange(here.is_closed, true)) return;
  if (network_.is_finished_) return;  // the actor at the other end may be gone
  Side& there = sides_[1 - side];
  Process& reader = there.actor->process();
  const bool is_late = reader.paused_until > network_.simulation().now() ||
                       network_.repeats_packets(here.actor->process().host, reader.host);
  if (!there.unsent.empty() && is_late) reader.has_missed = true;
  there.unsent.clear();
  if (!there.is_closed) push(1 - side, {.is_end = true});
  here.arrived.clear();
  here.unsent.clear();
  if (there.is_closed) network_.full_.erase(number_);
  if (there.is_closed) network_.connections_.erase(number_);
}

// This end ends at once, with all that is on its way. The other one is reset when a packet passes again.
void Connection::break_at(int side, End::State how) {
  Side& here = sides_[side];
  if (here.is_closed || here.state != End::State::open) return;
  here.state = how;
  here.flying.clear();
  Side& there = sides_[1 - side];
  there.unsent.clear();
  if (!there.is_closed && there.state == End::State::open) push(1 - side, {.is_end = true});
  here.actor->wake();
}

// ---- The network ----

Network::Network(Simulation& simulation, const Options& options)
    : simulation_(simulation), options_(options), hosts_(static_cast<std::size_t>(options.hosts)) {
  // The zero of a clock is the boot of its host.
  for (Host& host : hosts_) host.offset = simulation_.between(0, 1000 * kSecond);
}

Process& Network::add_process(const std::string& name, int host) {
  processes_.push_back({.name = name, .host = host});
  return processes_.back();
}

int64_t Network::delay(int from, int to) {
  int64_t delay = from == to ? simulation_.between(1 * kUs, 30 * kUs) : simulation_.between(20 * kUs, options_.slowest);
  if (simulation_.percent(2)) delay += simulation_.between(0, from == to ? kMs : 20 * options_.slowest);
  if (simulation_.now() < slow_until_) delay += simulation_.between(0, slow_delay_);
  return delay;
}

void Network::connect(Actor& from, Actor* to, std::function<void(End)> made, std::function<void()> refused) {
  const int there = to->process().host;
  const int here = from.process().host;
  const int64_t arrives = simulation_.now() + delay(here, there);
  simulation_.at(arrives, [this, &from, to, here, there, made, refused] {
    if (!from.process().is_alive) return;
    if (is_cut(here, there) || is_cut(there, here)) {
      const int64_t until = std::max(cuts_[{here, there}].until, cuts_[{there, here}].until);
      simulation_.at(until + simulation_.between(0, kSecond),
                     [this, &from, to, made, refused] { connect(from, to, made, refused); });
      return;
    }
    const auto connection = std::make_shared<Connection>(*this, from, *to, ++made_);
    if (!to->process().is_alive || !to->accept({connection, 1})) {
      if (refused) simulation_.after(delay(there, here), refused);
      return;
    }
    connections_[connection->number()] = connection;
    simulation_.after(delay(there, here), [&from, connection, made] {
      if (from.process().is_alive) made({connection, 0});
    });
  });
}

// What has not left the process is lost with it.
void Network::end(Process& process) {
  if (!std::exchange(process.is_alive, false)) return;
  for (const auto& connection : open_connections()) {
    for (int side = 0; side < 2; ++side) {
      if (&connection->actor(side).process() == &process) connection->close(side);
    }
  }
  for (Actor* actor : process.actors) actor->died();
}

std::vector<std::shared_ptr<Connection>> Network::open_connections() const {
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& [number, connection] : connections_) all.push_back(connection);
  return all;
}

// A process sends on what did not fit into a buffer before.
void Network::settle(Process& process) {
  for (const uint64_t number : std::set<uint64_t>(full_)) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) continue;
    for (int side = 0; side < 2; ++side) {
      if (&found->second->actor(side).process() == &process) found->second->fill(1 - side);
    }
  }
}

// ---- Faults ----

void Network::kill(Process& process) {
  simulation_.tell("FAULT  {} is killed", process.name);
  process.was_killed = true;
  end(process);
}

void Network::pause(Process& process, int64_t how_long) {
  simulation_.tell("FAULT  {} is stopped for {:.3f} s", process.name, static_cast<double>(how_long) / 1e9);
  process.paused_until = std::max(process.paused_until, simulation_.now() + how_long);
  process.longest_pause = std::max(process.longest_pause, process.paused_until - simulation_.now());
  for (Actor* actor : process.actors) actor->wake();
}

void Network::pause_host(int host, int64_t how_long, bool clock_stands) {
  simulation_.tell("FAULT  host {} is paused for {:.3f} s{}", host, static_cast<double>(how_long) / 1e9,
                   clock_stands ? ", and its clock" : "");
  for (Process& process : processes_) {
    if (process.host == host && process.is_alive) pause(process, how_long);
  }
  if (clock_stands) hosts_[static_cast<std::size_t>(host)].offset -= how_long;
}

void Network::jump_clock(int host, int64_t forward) {
  simulation_.tell("FAULT  the clock of host {} jumps by {:.3f} s", host, static_cast<double>(forward) / 1e9);
  hosts_[static_cast<std::size_t>(host)].offset += forward;
  wake_all_of(host);
}

void Network::wake_all_of(int host) {
  for (Process& process : processes_) {
    if (process.host != host || !process.is_alive) continue;
    for (Actor* actor : process.actors) actor->wake();
  }
}

void Network::cut(int from, int to, int64_t how_long) {
  if (is_cut(from, to)) return;
  simulation_.tell("FAULT  no packet passes from host {} to host {} for {:.3f} s", from, to,
                   static_cast<double>(how_long) / 1e9);
  cuts_[{from, to}] = {.since = simulation_.now(), .until = simulation_.now() + how_long};
  int64_t& longest = longest_cut_[std::minmax(from, to)];
  const int64_t since = cut_since(from, to);
  longest = std::max(longest, simulation_.now() + how_long - since);
  for (int side = 0; side < 2; ++side) {
    for (const auto& connection : open_connections()) {
      const int a = connection->actor(0).process().host;
      const int b = connection->actor(1).process().host;
      if (std::minmax(a, b) != std::minmax(from, to)) continue;
      const int64_t limit = options_.timeout + simulation_.between(0, options_.timeout / 10);
      simulation_.at(since + limit, [this, connection, side, from, to, since] {
        if (cut_since(from, to) == since) connection->break_at(side, End::State::cut_off);
      });
    }
  }
}

bool Network::is_cut(int from, int to) const {
  const auto found = cuts_.find({from, to});
  return found != cuts_.end() && simulation_.now() < found->second.until;
}

bool Network::repeats_packets(int from, int to) const {
  const auto found = cuts_.find({from, to});
  return found != cuts_.end() && simulation_.now() < found->second.until + kLongestRepetition;
}

int64_t Network::cut_since(int a, int b) const {
  int64_t since = kNever;
  if (is_cut(a, b)) since = cuts_.at({a, b}).since;
  if (is_cut(b, a)) since = std::min(since, cuts_.at({b, a}).since);
  return since;
}

bool Network::was_cut_for(int a, int b, int64_t how_long) const {
  const auto found = longest_cut_.find(std::minmax(a, b));
  return found != longest_cut_.end() && found->second >= how_long;
}

void Network::reset(const std::shared_ptr<Connection>& connection) {
  simulation_.tell("FAULT  the connection of {} and {} is reset", connection->actor(0).process().name,
                   connection->actor(1).process().name);
  for (int side = 0; side < 2; ++side) connection->break_at(side, End::State::closed);
}

void Network::slow_down(int64_t until, int64_t delay) {
  simulation_.tell("FAULT  packets take up to {:.3f} s longer for {:.3f} s", static_cast<double>(delay) / 1e9,
                   static_cast<double>(until - simulation_.now()) / 1e9);
  slow_until_ = until;
  slow_delay_ = delay;
}

}  // namespace fdl::simulation
