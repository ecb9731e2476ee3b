// Assembly runs the links of one connect() call until all peers are connected.
#include "transports/tcp/assembly.h"

#include <fmt/format.h>

#include <algorithm>

#include "contract/transport.h"

namespace fdl {

std::string tcp_protection_of(const Membership& membership) {
  return membership.config->security + (membership.key_is_secret ? "" : " derived");
}

// The keys of a connection belong to one direction each.
std::unique_ptr<StreamProtection> tcp_protection(const Membership& membership, int peer,
                                                 const TcpConnection& connection) {
  const Security security = security_with(membership, membership.members[static_cast<std::size_t>(peer)]);
  if (security == Security::none || !connection.fd) return nullptr;
  const auto key = [&](bool of_caller) {
    return derive_session_key(connection.session_key, {},
                              fmt::format("farandole tcp {} {}", of_caller ? "caller" : "listener", name_of(security)));
  };
  return std::make_unique<StreamProtection>(StreamProtection{security, Seal(key(connection.called), Seal::End::sender),
                                                             Seal(key(!connection.called), Seal::End::receiver)});
}

Status tcp_streams_differ(const Membership& membership, const TcpCaller& caller, int mine) {
  return Status(
      Code::invalid_argument,
      fmt::format("tcp: {} carries a channel over {} connections and {} over {}; set tcp_streams alike on all "
                  "ranks",
                  membership.name_of(caller.rank), caller.count / kChannelCount, membership.name_of(membership.rank),
                  mine / kChannelCount));
}

Status tcp_keys_differ(const Membership& membership, int peer, const std::string& failures) {
  const Member& refuser = membership.members[static_cast<std::size_t>(peer)];
  return Status::blame(refuser.world_rank, refuser.host_name, Code::authentication,
                       fmt::format("tcp: {} and {} cannot authenticate each other: {}; give all ranks the same job key",
                                   membership.name_of(membership.rank), membership.name_of(peer), failures));
}

Status tcp_lacks_port(const Membership& membership, int peer, const std::string& failures) {
  return Status(Code::resource, fmt::format("tcp: {} is not connected to {}: {}", membership.name_of(membership.rank),
                                            membership.name_of(peer), failures));
}

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
    : TcpLinks(membership.job_key, fmt::format("tcp {} {}", membership.id, tcp_protection_of(membership)),
               std::to_string(membership.rank), membership.size(), std::move(listening), std::move(poller)),
      membership_(membership),
      streams_(streams),
      place_count_(place_count(streams)),
      connected_(streams.size() * place_count_),
      published_(static_cast<std::size_t>(membership.size())),
      last_failure_(static_cast<std::size_t>(membership.size())) {}

Status Assembly::start() {
  FDL_RETURN_IF_ERROR(begin());
  int callers = 0;
  for (int peer = membership_.rank + 1; peer < membership_.size(); ++peer) {
    callers += connections_with(peer) > 0 ? 1 : 0;
  }
  if (callers > 0) {  // a fact without readers would stay
    FDL_RETURN_IF_ERROR(membership_.exchange->publish_for(callers, key_of_each() + std::to_string(membership_.rank),
                                                          join_addresses(listening().addresses)));
  }
  // Time is kept in reserve for connecting to the others after a lower rank has not published, so that the error names
  // only that rank.
  const Deadline deadline = membership_.deadline;
  if (!deadline.is_never()) {
    const int64_t reserve_ns = std::min<int64_t>(deadline.remaining_ns() / 4, 1'000'000'000);
    for_fetching_ = deadline.shifted_by_ns(-reserve_ns);
  }
  FDL_RETURN_IF_ERROR(fetch_addresses(for_fetching_));
  return run(deadline);
}

// One request for all, which are answered together: a rank that has not published is named when the deadline has
// passed, and the others are called then.
Status Assembly::fetch_addresses(Deadline deadline) {
  std::vector<int> lower;
  for (int peer = 0; peer < membership_.rank; ++peer) {
    if (connections_with(peer) > 0) lower.push_back(peer);
  }
  FDL_ASSIGN_OR_RETURN(const ManyFacts addresses, membership_.exchange->fetch_many(key_of_each(), lower, deadline));
  for (std::size_t i = 0; i < lower.size(); ++i) {
    const int peer = lower[i];
    if (std::ranges::count(addresses.missing, peer) > 0) continue;
    published_[static_cast<std::size_t>(peer)] = true;
    for (int number = 0; number < connections_with(peer); ++number) {
      auto link = std::make_unique<Link>();
      link->calling = true;
      link->caller = {membership_.rank, number, peer, connections_with(peer)};
      link->callee = std::to_string(peer);
      link->addresses = split_addresses(addresses.values[i]);
      FDL_RETURN_IF_ERROR(try_address(place(std::move(link))));
    }
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

Status Assembly::on_round_failed(std::size_t place) {
  const Link& failed = link(place);
  last_failure_[static_cast<std::size_t>(failed.caller.target)] = failed.failures;
  if (failed.refused_rounds >= kFinalRefusals) {
    return tcp_keys_differ(membership_, failed.caller.target, failed.failures);
  }
  // The others wait until the deadline, and would then name this rank without the reason.
  if (failed.lacks_port() && for_fetching_.passed()) {
    return tcp_lacks_port(membership_, failed.caller.target, failed.failures);
  }
  return {};
}

Status Assembly::on_accepted(std::size_t place) {
  const TcpCaller caller = TcpCaller::parse(link(place).introduction->introduced().peer);
  // Hosts may use the same private addresses, so a caller may reach this rank although it addresses another.
  const bool for_me = caller.target == membership_.rank && caller.rank > membership_.rank &&
                      caller.rank < membership_.size() && connections_with(caller.rank) > 0;
  if (for_me && caller.count != connections_with(caller.rank)) {
    return tcp_streams_differ(membership_, caller, connections_with(caller.rank));
  }
  if (for_me && caller.number >= 0 && caller.number < caller.count) {
    // A peer whose first connection timed out calls again; it uses the newest connection.
    connection(caller.rank, caller.number) = take(place);
  } else {
    drop(place);
  }
  return {};
}

Status Assembly::on_established(std::size_t place) {
  const TcpCaller mine = link(place).caller;
  connection(mine.target, mine.number) = take(place);
  return {};
}

std::string Assembly::key_of_each() const { return fmt::format("{}/tcp/", membership_.id); }

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

// A member calls none while one address is missing. So a higher rank that has not called may wait for the lower one
// that has not published, as this rank does.
bool Assembly::lacks_an_address() const {
  for (int peer = 0; peer < membership_.rank; ++peer) {
    if (connections_with(peer) > 0 && !published_[static_cast<std::size_t>(peer)]) return true;
  }
  return false;
}

// Names every missing member with what is known about it; the first one is the culprit. A member that has published an
// address has come: it is not named where another one has not. One of a higher rank than the first missing member may
// wait for that one before it calls here.
Status Assembly::missing_members_error() const {
  std::string missing, behind;
  int first = -1;
  const bool only_unpublished = lacks_an_address();
  for (int peer = 0; peer < membership_.size(); ++peer) {
    if (all_connected(peer)) continue;
    const bool is_unpublished = peer < membership_.rank && !published_[static_cast<std::size_t>(peer)];
    if (only_unpublished && !is_unpublished) continue;
    if (first >= 0 && peer > membership_.rank) {
      behind += fmt::format("{}{}", behind.empty() ? "" : ", ", membership_.name_of(peer));
      continue;
    }
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
  if (!behind.empty()) {
    missing +=
        fmt::format(" (not connected either, and perhaps waiting for {}: {})", membership_.name_of(first), behind);
  }
  if (!refusal().empty()) missing += fmt::format(" (a connection was refused: {})", refusal());
  const Member& missed = membership_.members[static_cast<std::size_t>(first)];
  return Status::blame(
      missed.world_rank, missed.host_name, Code::timeout,
      fmt::format("tcp: not all ranks connected in time: {}; see their logs, or raise start_timeout_s", missing));
}

}  // namespace fdl
