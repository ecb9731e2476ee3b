// Each turn of the loop opens the connections that Survivors wants, sends its messages, and hands it what arrives.
#include "bootstrap/recovery/survivor_connections.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/split_list.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr int64_t kConnect_ns = 1'000'000'000;
constexpr int64_t kServerLook_ns = 20'000'000;  // to find whether the serving rank is there
constexpr double kServerGrace_s = 2;            // for the serving rank's error, which names all that are missing
constexpr double kLastMessages_s = 1;           // for messages that the other end does not read at once
constexpr int64_t kExcluded_ns = 200'000'000;   // to connect to a rank that is gone, and may find there that it is
constexpr double kAddress_s = 10;               // for the serving rank to open its coordinator
constexpr std::size_t kMostSilent = 64;         // each may hold an incomplete frame

// At a loopback address of another host a process of this one listens. It counts only where there is no other.
std::vector<Address> addresses_in(const std::string& text) {
  std::vector<Address> addresses;
  for (std::string& one : split_list(text)) {
    if (!one.empty()) addresses.push_back({std::move(one)});
  }
  if (!std::ranges::all_of(addresses, is_loopback_address)) std::erase_if(addresses, is_loopback_address);
  return addresses;
}

Survivors::Options options_of(const RecoveryPoint& point, const std::set<int>& lost, double timeout_s) {
  Survivors::Options options{.me = point.me,
                             .round = point.round,
                             .members = point.members,
                             .gone = lost,
                             .names = {},
                             .timeout_ns = seconds_to_ns(timeout_s),
                             .grace_ns = seconds_to_ns(kServerGrace_s)};
  std::ranges::sort(options.members);
  for (std::size_t rank = 0; rank < point.members.size(); ++rank) {
    CoordinatorClient::Hello hello = point.ranks[static_cast<std::size_t>(point.members[rank])];
    hello.rank = static_cast<int>(rank);  // in the world that ends
    options.names[point.members[rank]] = process_name(hello);
  }
  return options;
}

CoordinatorMessage to_wire(const SurvivorMessage& message) {
  CoordinatorMessage wire;
  wire.kind = message.kind == SurvivorMessage::Kind::here      ? Kind::shrink_here
              : message.kind == SurvivorMessage::Kind::decided ? Kind::shrink_decided
              : message.kind == SurvivorMessage::Kind::address ? Kind::shrink_address
                                                               : Kind::shrink_failed;
  wire.rank = message.from;
  wire.number = message.to;
  wire.id = message.round;
  wire.key = message.address;
  wire.why = message.why;
  for (const int rank : message.members) {
    if (!message.gone.contains(rank)) wire.ranks.push_back(rank);
  }
  for (const int rank : message.gone) wire.ranks.push_back(-1 - rank);
  return wire;
}

// Nothing if the fields contradict each other or name ranks that do not exist.
std::optional<SurvivorMessage> from_wire(const CoordinatorMessage& wire, int ranks) {
  const auto exists = [&](int64_t rank) { return rank >= 0 && rank < ranks; };
  SurvivorMessage message;
  switch (wire.kind) {
    case Kind::shrink_here:
      message.kind = SurvivorMessage::Kind::here;
      break;
    case Kind::shrink_decided:
      message.kind = SurvivorMessage::Kind::decided;
      break;
    case Kind::shrink_address:
      message.kind = SurvivorMessage::Kind::address;
      break;
    case Kind::shrink_failed:
      message.kind = SurvivorMessage::Kind::failed;
      if (wire.why.ok()) return std::nullopt;
      break;
    default:
      return std::nullopt;
  }
  if (!exists(wire.rank) || !exists(wire.number)) return std::nullopt;
  message.from = wire.rank;
  message.to = static_cast<int>(wire.number);
  message.round = wire.id;
  message.address = wire.key;
  message.why = wire.why;
  for (const int rank : wire.ranks) {
    if (!exists(rank) && !exists(-1 - int64_t{rank})) return std::nullopt;
    if (rank >= 0) message.members.push_back(rank);
    if (rank < 0) message.gone.insert(-1 - rank);
  }
  return message;
}

}  // namespace

SurvivorConnections::SurvivorConnections(RecoveryPoint& point, const std::set<int>& lost, double timeout_s,
                                         double lost_after_s)
    : point_(point),
      lost_after_s_(lost_after_s),
      survivors_(options_of(point, lost, timeout_s), now_ns()),
      calls_(survivors_, point.me, seconds_to_ns(lost_after_s)) {}

Status SurvivorConnections::gather() {
  while (survivors_.state() == Survivors::State::gathering) turn(survivors_.next());
  flush();  // what was decided, or why it failed
  if (survivors_.state() == Survivors::State::failed) return survivors_.why();
  point_.round = survivors_.round();
  point_.members = survivors_.members();
  return {};
}

Result<std::string> SurvivorConnections::share(const std::string& address) {
  if (survivors_.has_decided()) {
    calls_.serve_at(address);
    flush();
    return address;
  }
  const Deadline deadline = Deadline::after_seconds(kAddress_s);
  while (!calls_.address()) {
    if (survivors_.is_gone(survivors_.server()) || survivors_.server() != survivors_.members().front()) {
      return Status(Code::peer_lost, "the rank that decided on the new world was lost before it could serve it");
    }
    if (deadline.passed()) return Status(Code::timeout, "rank 0 of the new world did not give its address in time");
    turn(deadline);
  }
  return *calls_.address();
}

void SurvivorConnections::resume(const std::set<int>& lost) { survivors_.resume(lost, now_ns()); }

bool SurvivorConnections::server_is_there() {
  const int server = survivors_.members().front();
  const Deadline deadline = Deadline::after_ns(kServerLook_ns);
  while (!deadline.passed() && !survivors_.is_gone(server)) turn(deadline);
  return !survivors_.is_gone(server);
}

// ---- The loop ----

bool SurvivorConnections::has_unsent() const {
  const auto waits = [&](const auto& one) {
    const auto& [rank, link] = one;
    if (link.socket) return link.socket->unsent_bytes() > 0;
    return link.connecting && survivors_.is_gone(rank) &&
           now_ns() < link.until.moment_ns() - kConnect_ns + kExcluded_ns;
  };
  return std::ranges::any_of(links_, waits) || calls_.has_unsent();
}

// The end of a rank that does not read is bounded.
void SurvivorConnections::flush() {
  const Deadline deadline = Deadline::after_seconds(kLastMessages_s);
  do {
    keep_links();
    if (!has_unsent()) return;
    turn(deadline.earlier(Deadline::after_ns(kExcluded_ns)));
  } while (!deadline.passed());
}

Deadline SurvivorConnections::next(Deadline deadline) const {
  std::set<int> paused;
  for (const int rank : wanted_) {
    const Link& link = links_.at(rank);
    if (link.connecting) deadline = deadline.earlier(link.until);
    if (!link.connecting && !link.socket) paused.insert(rank);
  }
  return deadline.earlier(calls_.next(paused));
}

void SurvivorConnections::turn(Deadline deadline) {
  keep_links();
  std::vector<pollfd> waits{{point_.listener.get(), POLLIN, 0}};
  std::vector<int> ranks;
  for (const auto& [rank, link] : links_) {
    if (!link.connecting && !link.socket) continue;
    const bool writes = link.connecting || link.socket->unsent_bytes() > 0;
    waits.push_back({link.connecting ? link.connecting.get() : link.socket->fd(),
                     static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
    ranks.push_back(rank);
  }
  for (const Incoming& incoming : incoming_) waits.push_back({incoming.socket->fd(), POLLIN, 0});
  ::poll(waits.data(), waits.size(), calls_.has_refusals() ? 0 : next(deadline).remaining_ms());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (waits[1 + i].revents != 0) drive(ranks[i], links_[ranks[i]]);
  }
  receive_all();
  survivors_.tick(now_ns());
}

// ---- Connections of this rank ----

void SurvivorConnections::keep_links() {
  wanted_ = calls_.wanted();
  for (const int rank : wanted_) {
    Link& link = links_[rank];
    if (link.addresses.empty()) link.addresses = addresses_in(point_.ranks[static_cast<std::size_t>(rank)].recovery);
    if (link.connecting && link.until.passed()) fail_address(rank, link, false);
    if (!link.connecting && !link.socket && calls_.may_call(rank, now_ns())) begin(rank, link);
    if (link.socket) send(link, calls_.take_for(rank));
  }
}

void SurvivorConnections::begin(int rank, Link& link) {
  if (link.addresses.empty()) return calls_.postpone(rank, now_ns());
  calls_.begin(rank, now_ns());
  ConnectFault fault = ConnectFault::other;
  auto fd = begin_connect(link.addresses[link.next_address], &fault);
  if (!fd.ok()) return fail_address(rank, link, fault == ConnectFault::nothing_listens);
  link.connecting = fd.take();
  link.until = Deadline::after_ns(kConnect_ns);
}

// The rank's process has ended if one of its addresses refuses and none accepts.
void SurvivorConnections::fail_address(int rank, Link& link, bool refused) {
  link.connecting.reset();
  link.was_refused = link.was_refused || refused;
  if (++link.next_address < link.addresses.size()) return begin(rank, link);
  link.next_address = 0;
  const auto loss = calls_.failed(rank, std::exchange(link.was_refused, false), now_ns());
  if (loss == SurvivorCalls::Loss::ended) log_debug("recovery: nothing listens for rank {} any more", rank);
  if (loss == SurvivorCalls::Loss::cut_off && !survivors_.is_gone(rank)) {
    log_warning("recovery: rank {} cannot be reached for {:g} s, and counts as lost", rank, lost_after_s_);
  }
}

void SurvivorConnections::drive(int rank, Link& link) {
  if (link.connecting) return finish(rank, link);
  // Nothing is sent over it in this direction, so what it can tell is its end.
  std::vector<CoordinatorMessage> none;
  const bool is_open = link.socket->receive(none) == FramedSocket::State::open && link.socket->flush();
  if (is_open && none.empty()) return;
  log_debug("recovery: rank {} closed the connection of rank {}", rank, point_.me);
  link.socket.reset();
  calls_.closed(rank);
}

void SurvivorConnections::finish(int rank, Link& link) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(link.connecting.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  // A name of the host that was free again may have been taken by another user.
  const bool refused = error == ECONNREFUSED || (error == 0 && is_of_another_user(link.connecting.get()));
  if (error != 0 || refused) return fail_address(rank, link, refused);
  survive_outages(link.connecting.get(), lost_after_s_);
  link.socket = std::make_unique<FramedSocket>(std::move(link.connecting), point_.key, Direction::from_coordinator);
  log_debug("recovery: rank {} is connected to rank {}", point_.me, rank);
  link.next_address = 0;
  link.was_refused = false;
  send(link, calls_.connected(rank));
}

void SurvivorConnections::send(Link& link, const std::vector<SurvivorMessage>& messages) {
  for (const SurvivorMessage& message : messages) link.socket->send(to_wire(message));
  if (!messages.empty()) link.socket->flush();
}

// ---- Connections of others ----

void SurvivorConnections::accept_all() {
  while (true) {
    auto accepted = accept_one(point_.listener.get());
    if (!accepted.ok() || !*accepted) return;
    if (is_of_another_user(accepted->get())) continue;
    const auto silent = std::ranges::count_if(incoming_, [](const Incoming& incoming) { return !incoming.has_sent; });
    if (static_cast<std::size_t>(silent) >= kMostSilent) {
      incoming_.erase(std::ranges::find_if(incoming_, [](const Incoming& incoming) { return !incoming.has_sent; }));
    }
    Incoming incoming;
    incoming.socket = std::make_unique<FramedSocket>(accepted.take(), point_.key, Direction::to_coordinator);
    if (receive(incoming)) incoming_.push_back(std::move(incoming));
  }
}

// A rank that has ended may have sent what it knew before: that this rank is excluded, or why all have failed. So what
// is here is read before its end counts.
void SurvivorConnections::receive_all() {
  for (auto incoming = incoming_.begin(); incoming != incoming_.end();) {
    incoming = receive(*incoming) ? std::next(incoming) : incoming_.erase(incoming);
  }
  accept_all();
  calls_.report_refusals(now_ns());
}

// Returns whether the connection stays. What it sent before its end counts: its rank may have finished.
bool SurvivorConnections::receive(Incoming& incoming) {
  std::vector<CoordinatorMessage> messages;
  const FramedSocket::State state = incoming.socket->receive(messages);
  for (const CoordinatorMessage& wire : messages) {
    const std::optional<SurvivorMessage> message = from_wire(wire, static_cast<int>(point_.ranks.size()));
    if (!message || message->to != point_.me) return false;
    incoming.has_sent = true;
    log_debug("recovery: rank {} received kind {} of round {} from rank {}", point_.me, static_cast<int>(wire.kind),
              message->round, message->from);
    calls_.receive(*message, now_ns());
  }
  return state == FramedSocket::State::open;
}

}  // namespace fdl
