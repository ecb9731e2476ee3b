// The connector's thread handles the requests of transports, and delivers connections to them.
#include "transports/tcp/connector_loop.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "transports/tcp/stream.h"

namespace fdl {
namespace {

// Pause after an accept that has found no descriptor.
constexpr auto kPauseWithoutDescriptors = std::chrono::milliseconds(50);
// Names of ended communicators that are remembered.
constexpr std::size_t kMostEnded = 1024;

}  // namespace

void TcpConnector::Loop::run() {
  while (!stopped_) {
    const Status status = poll_once(Deadline::never());
    if (status.ok()) continue;
    // Calls report their own errors, so this is an accept: the callers wait and call again.
    if (!std::exchange(warned_, true)) {
      log_warning("tcp: connections cannot be accepted now: {}", status.text());
    }
    make_room();
    std::this_thread::sleep_for(kPauseWithoutDescriptors);
  }
}

void TcpConnector::Loop::handle_requests() {
  requests_.clear();
  std::vector<Request> requests;
  {
    const MutexLock lock(connector_.mutex_);
    requests = std::exchange(connector_.requests_, {});
    stopped_ = connector_.stopped_;
  }
  if (stopped_) return;
  for (const Request& request : requests) {
    if (request.kind == Request::Kind::open) {
      open(request.endpoint);
    } else if (request.kind == Request::Kind::close) {
      begin_calls();
      close(*request.endpoint);
    } else if (request.kind == Request::Kind::relieve) {
      relieve();
    } else if (const auto found = open_.find(request.endpoint->name_); found == open_.end()) {
      continue;
    } else if (request.kind == Request::Kind::demand) {
      demand(found->second, request.channel);
    } else {
      demand_one(found->second, request.peer, request.number, request.generation);
    }
  }
  begin_calls();
}

// Fetches the addresses of all demanded callees that are not known by one request, and calls them. The first rank of a
// large communicator calls all others at its start.
void TcpConnector::Loop::begin_calls() {
  const std::vector<std::size_t> places = std::exchange(demanded_, {});
  std::set<int> unknown;
  for (const std::size_t place : places) {
    if (addresses_[callee_of(place)].empty()) unknown.insert(callee_of(place));
  }
  const std::vector<int> callees(unknown.begin(), unknown.end());
  if (!callees.empty()) {
    const auto fetched = connector_.exchange_->fetch_many("tcp/", callees, Deadline::after_ns(kFetchNs));
    for (std::size_t i = 0; fetched.ok() && i < callees.size(); ++i) {
      addresses_[callees[i]] = split_addresses(fetched->values[i]);
    }
  }
  for (const std::size_t place : places) {
    if (addresses_[callee_of(place)].empty()) {
      rest(place);
    } else {
      static_cast<void>(on_rested(place));
    }
  }
}

void TcpConnector::Loop::open(const std::shared_ptr<TcpEndpoint>& endpoint) {
  Open& open = open_[endpoint->name_];
  open.endpoint = endpoint;
  for (auto parked = parked_.begin(); parked != parked_.end();) {
    const auto [place, caller] = *parked;
    const bool for_it = caller.communicator == endpoint->name_;
    parked = for_it ? parked_.erase(parked) : std::next(parked);
    if (for_it) admit(open, place, caller);
  }
}

void TcpConnector::Loop::demand(Open& open, Channel channel) {
  const int count = open.endpoint->connections_with(channel.peer);
  for (int number = channel.index; number < count; number += kChannelCount) demand_one(open, channel.peer, number, 0);
}

void TcpConnector::Loop::demand_one(Open& open, int peer, int number, uint32_t generation) {
  const TcpEndpoint& endpoint = *open.endpoint;
  const auto found = open.slots.find({peer, number});
  // The peer has called, or has left.
  if (found != open.slots.end() && found->second.generation >= generation) return;
  auto link = std::make_unique<Link>();
  link->calling = true;
  link->caller = {.rank = endpoint.membership_.rank,
                  .number = number,
                  .target = peer,
                  .count = endpoint.connections_with(peer),
                  .generation = static_cast<int>(generation),
                  .communicator = endpoint.name_};
  link->callee = std::to_string(endpoint.membership_.members[static_cast<std::size_t>(peer)].world_rank);
  const std::size_t here = place(std::move(link));
  open.slots[{peer, number}] = {generation, false, here, Deadline::after_seconds(patience_s_)};
  demanded_.push_back(here);
}

// All communicators look for idle connections. The first time is reported: as a warning by one rank of the world,
// because the limits of the others are usually the same.
void TcpConnector::Loop::relieve() {
  if (!std::exchange(told_limit_, true)) {
    log_at(is_first_rank_ ? LogLevel::warning : LogLevel::info,
           "tcp: this process has {} connections, and its limit of descriptors (ulimit -n) or "
           "FARANDOLE_TCP_CONNECTIONS leaves {}: idle ones are closed from now on, and made again when they are used; "
           "raise the limit to avoid that",
           connector_.budget_->open(), connector_.budget_->limit());
  }
  for (const auto& [name, open] : open_) open.endpoint->nudge();
}

// The call waits for a descriptor: idle connections are closed, and others may end.
Status TcpConnector::Loop::on_out_of_resources(std::size_t place, const Status& why) {
  if (call_at(place).second->give_up.passed()) {
    fail(place, why.while_doing("waiting for a free descriptor (raise ulimit -n)"));
    return {};
  }
  make_room();
  rest(place);
  return {};
}

// No descriptor is left: the program has more of them than the limit of connections leaves for it.
void TcpConnector::Loop::make_room() {
  connector_.budget_->lower_to(connector_.budget_->open() - 1);
  relieve();
}

int TcpConnector::Loop::callee_of(std::size_t place) {
  const TcpCaller& mine = link(place).caller;
  return open_.at(mine.communicator).endpoint->membership_.members[static_cast<std::size_t>(mine.target)].world_rank;
}

void TcpConnector::Loop::close(const TcpEndpoint& endpoint) {
  const auto found = open_.find(endpoint.name_);
  if (found == open_.end()) return;
  for (const auto& [key, slot] : found->second.slots) {
    if (slot.made) continue;
    // The callee may have taken the call.
    if (link(slot.place).state == Link::State::kept) {
      say_goodbye(endpoint.membership_, key.first, take(slot.place));
    } else {
      drop(slot.place);
    }
  }
  open_.erase(found);
  ended_.insert(endpoint.name_);
  ended_in_order_.push_back(endpoint.name_);
  if (ended_in_order_.size() > kMostEnded) {
    ended_.erase(ended_in_order_.front());
    ended_in_order_.pop_front();
  }
}

TcpConnector::Loop::Call TcpConnector::Loop::call_at(std::size_t place) {
  const TcpCaller& mine = link(place).caller;
  Open& open = open_.at(mine.communicator);
  return {&open, &open.slots.at({mine.target, mine.number})};
}

void TcpConnector::Loop::deliver(TcpEndpoint& endpoint, TcpEndpoint::Arrival arrival) {
  const MutexLock lock(endpoint.mutex_);
  if (!endpoint.closed_) {
    endpoint.arrivals_.push_back(std::move(arrival));
    endpoint.has_arrivals_.store(true, std::memory_order_release);
    endpoint.event_.ring();
  } else if (arrival.connection.fd) {
    say_goodbye(endpoint.membership_, arrival.peer, std::move(arrival.connection));
  }
}

void TcpConnector::Loop::fail(std::size_t place, const Status& why, bool left) {
  const auto [owner, slot] = call_at(place);
  const TcpCaller mine = link(place).caller;
  drop(place);
  slot->made = true;  // no second call
  deliver(*owner->endpoint, {.peer = mine.target, .number = mine.number, .failure = why, .left = left});
}

}  // namespace fdl
