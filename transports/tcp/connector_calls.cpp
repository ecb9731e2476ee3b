// The connector calls other ranks, and admits or refuses their calls.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "transports/tcp/connector_loop.h"

namespace fdl {
namespace {

// The last byte of a call, from the callee.
constexpr char kTaken = 1;
constexpr char kLeft = 2;

void answer(int fd, char byte) { [[maybe_unused]] const auto sent = ::send(fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT); }

}  // namespace

// ---- Calls of this rank ----

// Fetches the addresses of the callee if they are not known, and calls.
Status TcpConnector::Loop::on_rested(std::size_t place) {
  Link& call = link(place);
  if (call.addresses.empty()) {
    const auto [owner, slot] = call_at(place);
    const Membership& membership = owner->endpoint->membership_;
    const int callee = membership.members[static_cast<std::size_t>(call.caller.target)].world_rank;
    std::vector<Address>& known = addresses_[callee];
    if (known.empty()) {
      const auto fetched = connector_.exchange_->fetch(key_of(callee), Deadline::after_ns(kFetchNs));
      if (fetched.ok()) known = split_addresses(*fetched);
    }
    if (known.empty() && slot->give_up.passed()) {
      const Member& missed = membership.members[static_cast<std::size_t>(call.caller.target)];
      fail(place, Status::blame(missed.world_rank, missed.host_name, Code::timeout,
                                fmt::format("tcp: {} did not publish an address; see its log",
                                            membership.name_of(call.caller.target))));
      return {};
    }
    if (known.empty()) {
      rest(place);
      return {};
    }
    call.addresses = known;
  }
  return try_address(place);
}

Status TcpConnector::Loop::on_round_failed(std::size_t place) {
  const Link& call = link(place);
  const auto [owner, slot] = call_at(place);
  const Membership& membership = owner->endpoint->membership_;
  const int peer = call.caller.target;
  const Member& callee = membership.members[static_cast<std::size_t>(peer)];
  const auto blame = [&](Code code, const std::string& what) {
    return Status::blame(callee.world_rank, callee.host_name, code,
                         fmt::format("tcp: {} {}", membership.name_of(peer), what));
  };
  if (call.refused_rounds == kFinalRefusals) {
    fail(place, tcp_keys_differ(membership, peer, call.failures));
  } else if (call.deaf_rounds == kFinalRefusals) {
    fail(place, blame(Code::peer_lost, "does not listen any more: it has left"), true);
  } else if (slot->give_up.passed()) {
    fail(place, blame(Code::timeout,
                      fmt::format("cannot be reached: {}; see its log, or raise start_timeout_s", call.failures)));
  }
  return {};
}

// The callee has answered a call of this rank, or has closed it. Only its end can be the event of a parked caller.
Status TcpConnector::Loop::on_kept(std::size_t place) {
  char byte = 0;
  const bool calling = link(place).calling;
  const ssize_t count = ::recv(link(place).fd.get(), &byte, 1, MSG_DONTWAIT | (calling ? 0 : MSG_PEEK));
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (!calling) {
    parked_.erase(place);
    drop(place);
    return {};
  }
  if (count == 1 && byte == kTaken) {
    const auto [owner, slot] = call_at(place);
    const TcpCaller mine = link(place).caller;
    slot->made = true;
    deliver(*owner->endpoint, {.peer = mine.target,
                               .number = mine.number,
                               .generation = static_cast<uint32_t>(mine.generation),
                               .connection = take(place)});
  } else if (count == 1 && byte == kLeft) {
    const auto [owner, slot] = call_at(place);
    const Membership& membership = owner->endpoint->membership_;
    const Member& callee = membership.members[static_cast<std::size_t>(link(place).caller.target)];
    fail(place,
         Status::blame(
             callee.world_rank, callee.host_name, Code::peer_lost,
             fmt::format("tcp: {} closed the connection: it has left", membership.name_of(link(place).caller.target))),
         true);
  } else {
    rest(place);  // it has called at the same time, or had no place
  }
  return {};
}

// ---- Calls of others ----

Status TcpConnector::Loop::on_accepted(std::size_t place) {
  const TcpCaller caller = TcpCaller::parse(link(place).introduction->introduced().peer);
  if (const auto found = open_.find(caller.communicator); found != open_.end()) {
    admit(found->second, place, caller);
  } else if (ended_.contains(caller.communicator)) {
    answer(link(place).fd.get(), kLeft);
    drop(place);
  } else {
    park(place, caller);
  }
  return {};
}

void TcpConnector::Loop::park(std::size_t place, const TcpCaller& caller) {
  if (!keep(place).ok()) return drop(place);
  if (parked_.empty()) parked_in_order_.clear();
  parked_[place] = caller;
  parked_in_order_.push_back(place);
  while (parked_.size() > most_parked_) {
    const std::size_t oldest = parked_in_order_.front();
    parked_in_order_.pop_front();
    if (parked_.erase(oldest) != 0) drop(oldest);
  }
}

void TcpConnector::Loop::admit(Open& open, std::size_t place, const TcpCaller& caller) {
  TcpEndpoint& endpoint = *open.endpoint;
  const int count = endpoint.connections_with(caller.rank);
  if (caller.target != endpoint.membership_.rank || count == 0) return refuse(place, "it called another rank");
  if (caller.count != count) {
    deliver(endpoint,
            {.peer = caller.rank, .number = 0, .failure = tcp_streams_differ(endpoint.membership_, caller, count)});
    return refuse(place, "it has another number of connections");
  }
  if (caller.number < 0 || caller.number >= count) return refuse(place, "it named no connection");
  const auto generation = static_cast<uint32_t>(std::max(caller.generation, 0));
  const auto found = open.slots.find({caller.rank, caller.number});
  const bool is_again = found != open.slots.end() && found->second.made && generation == found->second.generation + 1;
  if (found == open.slots.end() && generation > 0) return refuse(place, "it has closed a connection that was not made");
  if (found != open.slots.end() && !is_again) {
    // A call that has not reached the peer yet may never do so.
    const auto reached = [&] { return link(found->second.place).state >= Link::State::introducing; };
    const bool is_old = generation != found->second.generation;
    if (found->second.made || is_old || (endpoint.membership_.rank > caller.rank && reached())) return drop(place);
    drop(found->second.place);
  }
  open.slots[{caller.rank, caller.number}] = {.generation = generation, .made = true};
  answer(link(place).fd.get(), kTaken);
  deliver(endpoint,
          {.peer = caller.rank, .number = caller.number, .generation = generation, .connection = take(place)});
}

}  // namespace fdl
