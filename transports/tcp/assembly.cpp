// Assembly drives all connections of one connect() call through its states in a single poll loop.
#include "transports/tcp/assembly.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/log.h"
#include "contract/transport.h"

namespace fdl {
namespace {

constexpr uint64_t kListenerToken = ~uint64_t{0};
// Limit for one connection attempt: a lost SYN is sent again after 1 s.
constexpr int64_t kConnectNs = 5'000'000'000;
// Limit for the handshake of an established connection.
constexpr int64_t kIntroduceNs = 10'000'000'000;
// Pause after all addresses of a peer have failed.
constexpr int64_t kRestNs = 100'000'000;
// Accepted connections whose handshake is not complete.
constexpr std::size_t kMostUnidentified = 256;
// Rounds of refused handshakes before the refusal is final. A single one may mean that the peer had too many
// unidentified connections and dropped this one.
constexpr int kFinalRefusals = 3;

// Addresses travel through the exchange as one line, separated by spaces.
std::string joined(std::span<const Address> addresses) {
  std::string text;
  for (const Address& address : addresses) text += (text.empty() ? "" : " ") + address.text;
  return text;
}

std::vector<Address> split(std::string_view text) {
  std::vector<Address> addresses;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    if (space > 0) addresses.push_back({std::string(text.substr(0, space))});
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return addresses;
}

// The identity that a caller sends in the handshake.
// "3 1 0 2": rank 3 for connection 1 of the 2 that it opens to rank 0.
struct Caller {
  int rank = -1;
  int number = -1;
  int target = -1;
  int count = -1;

  std::string text() const { return fmt::format("{} {} {} {}", rank, number, target, count); }
  static Caller parse(std::string_view text) {
    Caller caller;
    for (int* number : {&caller.rank, &caller.number, &caller.target, &caller.count}) {
      while (text.starts_with(' ')) text.remove_prefix(1);
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *number);
      if (parsed.ec != std::errc()) return {};
      text.remove_prefix(static_cast<std::size_t>(parsed.ptr - text.data()));
    }
    return caller;
  }
};

// The result of a nonblocking connect().
Status connect_outcome(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return Status::from_errno("getsockopt");
  if (error != 0) return Status::from_errno("connect", error);
  return {};
}

}  // namespace

std::size_t Assembly::place_count(const std::vector<int>& streams) {
  return static_cast<std::size_t>(kChannelCount * std::max(1, *std::max_element(streams.begin(), streams.end())));
}

Result<std::vector<TcpConnection>> Assembly::connect(const Membership& membership, const std::vector<int>& streams) {
  // Without peers there is no need to listen.
  bool alone = true;
  for (int member = 0; member < membership.size(); ++member) {
    if (member != membership.rank && streams[static_cast<std::size_t>(member)] > 0) alone = false;
  }
  if (alone) return std::vector<TcpConnection>(streams.size() * place_count(streams));

  const auto doing = [&] { return fmt::format("connecting '{}' over TCP", membership.id); };
  Result<Poller> poller = Poller::make();
  if (!poller.ok()) return poller.status().while_doing(doing());
  const Config::PortRange ports_of_ranks = membership.config->rank_ports();
  const Ports ports{ports_of_ranks.first, ports_of_ranks.last};
  Result<Listening> listening = listen_tcp(membership.config->interfaces, ports);
  if (!listening.ok()) return listening.status().while_doing(doing());
  Assembly assembly(membership, streams, listening.take(), poller.take());
  const Status status = assembly.start();
  if (!status.ok()) return status.while_doing(doing());
  return std::move(assembly.connected_);
}

Assembly::Assembly(const Membership& membership, const std::vector<int>& streams, Listening listening, Poller poller)
    : membership_(membership),
      streams_(streams),
      place_count_(place_count(streams)),
      listening_(std::move(listening)),
      poller_(std::move(poller)),
      connected_(streams.size() * place_count_),
      published_(static_cast<std::size_t>(membership.size())),
      last_failure_(static_cast<std::size_t>(membership.size())) {}

Status Assembly::start() {
  FDL_RETURN_IF_ERROR(poller_.add(listening_.fd.get(), kListenerToken));
  FDL_RETURN_IF_ERROR(membership_.exchange->publish(key_of(membership_.rank), joined(listening_.addresses)));
  // Time is kept in reserve for connecting to the others after a lower rank has not published, so that the error names
  // only that rank.
  const Deadline deadline = membership_.deadline;
  // A quarter of the remaining time, at most 1 s.
  Deadline for_fetching = deadline;
  if (!deadline.is_never()) {
    const int64_t reserve_ns = std::min<int64_t>(deadline.remaining_ns() / 4, 1'000'000'000);
    for_fetching = deadline.shifted_by_ns(-reserve_ns);
  }
  FDL_RETURN_IF_ERROR(fetch_addresses(for_fetching));
  return run(deadline);
}

Status Assembly::fetch_addresses(Deadline deadline) {
  for (int peer = 0; peer < membership_.rank; ++peer) {
    if (connections_with(peer) == 0) continue;
    const Result<std::string> addresses = membership_.exchange->fetch(key_of(peer), deadline);
    if (!addresses.ok()) {
      // A rank that has not published in time is named when the deadline has passed.
      if (addresses.status().code() != Code::timeout) return addresses.status();
      continue;
    }
    published_[static_cast<std::size_t>(peer)] = true;
    for (int number = 0; number < connections_with(peer); ++number) {
      auto link = std::make_unique<Link>();
      link->calling = true;
      link->peer = peer;
      link->number = number;
      link->addresses = split(*addresses);
      FDL_RETURN_IF_ERROR(try_address(place(std::move(link))));
    }
    // Incoming connections are handled between two fetches.
    FDL_RETURN_IF_ERROR(poll_once(Deadline::at_ns(0)));
  }
  return {};
}

Status Assembly::run(Deadline deadline) {
  while (!complete()) {
    if (deadline.passed()) return missing_members_error();
    FDL_RETURN_IF_ERROR(poll_once(deadline));
  }
  return {};
}

// Waits for one batch of events, or for the earliest timeout of a connection, and handles it.
Status Assembly::poll_once(Deadline deadline) {
  std::array<Poller::Ready, 64> ready;
  const std::size_t count = poller_.wait(ready, deadline.earlier(earliest_timeout()));
  for (std::size_t i = 0; i < count; ++i) {
    if (ready[i].token == kListenerToken) {
      FDL_RETURN_IF_ERROR(accept_callers());
    } else if (links_[ready[i].token] != nullptr) {
      FDL_RETURN_IF_ERROR(advance(ready[i].token));
    }
  }
  for (std::size_t place = 0; place < links_.size(); ++place) {
    if (links_[place] != nullptr && links_[place]->timeout.passed()) FDL_RETURN_IF_ERROR(expire(place));
  }
  return {};
}

Deadline Assembly::earliest_timeout() const {
  Deadline first = Deadline::never();
  for (const auto& link : links_) {
    if (link != nullptr) first = first.earlier(link->timeout);
  }
  return first;
}

Status Assembly::accept_callers() {
  while (true) {
    FDL_ASSIGN_OR_RETURN(UniqueFd fd, accept_one(listening_.fd.get()));
    if (!fd) return {};
    evict_oldest_unidentified();
    auto link = std::make_unique<Link>();
    link->fd = std::move(fd);
    link->timeout = Deadline::after_ns(kIntroduceNs);
    link->introduction = std::make_unique<Introduction>(Introduction::Role::server, membership_.job_key, purpose(),
                                                        std::to_string(membership_.rank));
    // The handshake may already be readable, so it is advanced at once.
    const std::size_t here = place(std::move(link));
    FDL_RETURN_IF_ERROR(poller_.add(links_[here]->fd.get(), here));
    FDL_RETURN_IF_ERROR(introduce(here));
  }
}

// Stores a link at the first free index, which becomes its poller token.
std::size_t Assembly::place(std::unique_ptr<Link> link) {
  const auto free = std::find(links_.begin(), links_.end(), nullptr);
  const auto here = static_cast<std::size_t>(free - links_.begin());
  if (free == links_.end()) links_.emplace_back();
  links_[here] = std::move(link);
  return here;
}

void Assembly::drop(std::size_t place) { links_[place].reset(); }

// If too many accepted connections are unidentified, drops the one that has been silent for longest.
void Assembly::evict_oldest_unidentified() {
  std::size_t unidentified = 0;
  std::size_t oldest = links_.size();
  for (std::size_t place = 0; place < links_.size(); ++place) {
    if (links_[place] == nullptr || links_[place]->calling) continue;
    ++unidentified;
    const int64_t moment = links_[place]->timeout.moment_ns();
    if (oldest == links_.size() || moment < links_[oldest]->timeout.moment_ns()) oldest = place;
  }
  if (unidentified >= kMostUnidentified) drop(oldest);
}

Status Assembly::advance(std::size_t place) {
  Link& link = *links_[place];
  if (link.state == Link::State::connecting) {
    const Status outcome = connect_outcome(link.fd.get());
    if (!outcome.ok()) return next_address(place, outcome);
    link.state = Link::State::introducing;
    link.timeout = Deadline::after_ns(kIntroduceNs);
    const Caller me{membership_.rank, link.number, link.peer, connections_with(link.peer)};
    link.introduction =
        std::make_unique<Introduction>(Introduction::Role::client, membership_.job_key, purpose(), me.text());
  }
  return introduce(place);
}

Status Assembly::introduce(std::size_t place) {
  Link& link = *links_[place];
  const Result<bool> finished = link.introduction->advance(link.fd.get());
  // A call goes on with the next address; an accepted connection is dropped.
  if (!finished.ok()) {
    if (link.calling) {
      link.was_refused |= link.introduction->met_farandole();
      return next_address(place, finished.status());
    }
    refuse(place, finished.status().text());
    return {};
  }
  if (*finished) return link.calling ? establish(place) : admit(place);
  // The handshake either sends or receives at any time, so one event is watched.
  const bool sending = link.introduction->has_output();
  return poller_.change(link.fd.get(), place, !sending, sending);
}

Status Assembly::try_address(std::size_t place) {
  Link& link = *links_[place];
  if (link.addresses.empty()) return next_address(place, Status(Code::transport, "it published no address"));
  Result<UniqueFd> fd = begin_connect(link.addresses[link.trying]);
  if (!fd.ok()) return next_address(place, fd.status());
  link.fd = fd.take();
  link.state = Link::State::connecting;
  link.timeout = Deadline::after_ns(kConnectNs);
  return poller_.add(link.fd.get(), place, false, true);
}

// Tries the next address of the peer, or pauses after the last one. An error of this process's resources is final.
Status Assembly::next_address(std::size_t place, const Status& why) {
  Link& link = *links_[place];
  link.fd.reset();
  link.introduction.reset();
  if (why.code() == Code::resource) return why;
  const std::string where = link.addresses.empty() ? "" : link.addresses[link.trying].text + ": ";
  link.failures += (link.failures.empty() ? "" : "; ") + where + why.text();
  ++link.trying;
  if (link.trying < link.addresses.size()) return try_address(place);

  last_failure_[static_cast<std::size_t>(link.peer)] = link.failures;
  link.refused_rounds = link.was_refused ? link.refused_rounds + 1 : 0;
  if (link.refused_rounds == kFinalRefusals) {
    const Member& refuser = membership_.members[static_cast<std::size_t>(link.peer)];
    return Status::blame(
        refuser.world_rank, refuser.host_name, Code::authentication,
        fmt::format("tcp: {} and {} cannot authenticate each other: {}; give all ranks the same job key",
                    membership_.name_of(membership_.rank), membership_.name_of(link.peer), link.failures));
  }
  link.trying = 0;
  link.failures.clear();
  link.was_refused = false;
  link.state = Link::State::resting;
  link.timeout = Deadline::after_ns(kRestNs);
  return {};
}

// Handles a link whose state has lasted too long.
Status Assembly::expire(std::size_t place) {
  Link& link = *links_[place];
  if (link.state == Link::State::resting) return try_address(place);
  if (link.calling) return next_address(place, Status(Code::timeout, "no answer in time"));
  refuse(place, "its handshake timed out");
  return {};
}

// Drops an accepted connection and keeps the reason for the error text.
void Assembly::refuse(std::size_t place, const std::string& why) {
  log_debug("tcp: dropped a connection to '{}': {}", membership_.id, why);
  const bool farandole = links_[place]->introduction->met_farandole();
  if (refusal_.empty() || (farandole && !refused_farandole_)) refusal_ = why;
  refused_farandole_ |= farandole;
  drop(place);
}

// The caller has proved that it has the job key, and that it means this communicator: the purpose is part of the proof.
// Takes over an accepted connection after its handshake.
Status Assembly::admit(std::size_t place) {
  Link& link = *links_[place];
  const Caller caller = Caller::parse(link.introduction->introduced().peer);
  // Hosts may use the same private addresses, so a caller may reach this rank although it addresses another.
  const bool for_me = caller.target == membership_.rank && caller.rank > membership_.rank &&
                      caller.rank < membership_.size() && connections_with(caller.rank) > 0;
  if (for_me && caller.count != connections_with(caller.rank)) {
    return Status(
        Code::invalid_argument,
        fmt::format("tcp: {} carries a channel over {} connections and {} over {}; set tcp_streams alike on all "
                    "ranks",
                    membership_.name_of(caller.rank), caller.count / kChannelCount,
                    membership_.name_of(membership_.rank), connections_with(caller.rank) / kChannelCount));
  }
  if (for_me && caller.number >= 0 && caller.number < caller.count) {
    poller_.remove(link.fd.get());
    // A peer whose first connection timed out calls again; it uses the newest connection.
    connection(caller.rank, caller.number) = {std::move(link.fd), link.introduction->introduced().session_key, false};
  }
  drop(place);
  return {};
}

// Takes over a connection that this rank made, after its handshake.
Status Assembly::establish(std::size_t place) {
  Link& link = *links_[place];
  if (link.introduction->introduced().peer != std::to_string(link.peer)) {
    return next_address(place, Status(Code::transport, "another member listens there"));
  }
  poller_.remove(link.fd.get());
  connection(link.peer, link.number) = {std::move(link.fd), link.introduction->introduced().session_key, true};
  drop(place);
  return {};
}

// Both ends must protect their bytes alike, so the policy is part of the proof.
std::string Assembly::purpose() const {
  return fmt::format("tcp {} {}{}", membership_.id, membership_.config->security,
                     membership_.key_is_secret ? "" : " derived");
}

std::string Assembly::key_of(int member) const { return fmt::format("{}/tcp/{}", membership_.id, member); }

int Assembly::connections_with(int member) const {
  return member == membership_.rank ? 0 : kChannelCount * streams_[static_cast<std::size_t>(member)];
}

// Entry `number` of a peer in the result of connect().
TcpConnection& Assembly::connection(int peer, int number) {
  return connected_[static_cast<std::size_t>(peer) * place_count_ + static_cast<std::size_t>(number)];
}

// Whether all connections with a member exist; true for members that are no peers.
bool Assembly::all_connected(int member) const {
  const auto first = connected_.begin() + member * static_cast<std::ptrdiff_t>(place_count_);
  return std::all_of(first, first + connections_with(member),
                     [](const TcpConnection& one) { return static_cast<bool>(one.fd); });
}

bool Assembly::complete() const {
  for (int peer = 0; peer < membership_.size(); ++peer) {
    if (!all_connected(peer)) return false;
  }
  return true;
}

// Names every missing member with what is known about it; the first one is the culprit.
Status Assembly::missing_members_error() const {
  std::string missing;
  int first = -1;
  for (int peer = 0; peer < membership_.size(); ++peer) {
    if (all_connected(peer)) continue;
    if (first < 0) first = peer;
    const auto at = static_cast<std::size_t>(peer);
    std::string why = "did not connect";
    if (peer < membership_.rank) {
      why = !published_[at]             ? "did not publish an address"
            : last_failure_[at].empty() ? "did not answer"
                                        : "cannot be reached: " + last_failure_[at];
    }
    missing += fmt::format("{}{} {}", missing.empty() ? "" : "; ", membership_.name_of(peer), why);
  }
  if (!refusal_.empty()) missing += fmt::format(" (a connection was refused: {})", refusal_);
  const Member& missed = membership_.members[static_cast<std::size_t>(first)];
  return Status::blame(
      missed.world_rank, missed.host_name, Code::timeout,
      fmt::format("tcp: not all ranks connected in time: {}; see their logs, or raise start_timeout_s", missing));
}

}  // namespace fdl
