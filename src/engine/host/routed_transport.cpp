// RoutedTransport looks up the part before each call. A ticket's stream number encodes the part: stream * parts + part.
#include "engine/host/routed_transport.h"

#include "base/check.h"

namespace fdl {

Result<std::unique_ptr<Transport>> RoutedTransport::make(std::vector<std::unique_ptr<Transport>> parts,
                                                         std::vector<Route> routes, int rank) {
  FDL_CHECK(!parts.empty());
  for (std::size_t peer = 0; peer < routes.size(); ++peer) {
    const int part = routes[peer].part;
    FDL_CHECK(static_cast<int>(peer) == rank || (part >= 0 && part < static_cast<int>(parts.size())));
  }
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  for (std::size_t i = 0; i < parts.size(); ++i) FDL_RETURN_IF_ERROR(poller.add(parts[i]->wake_fd(), i));
  return std::unique_ptr<Transport>(new RoutedTransport(std::move(parts), std::move(routes), rank, std::move(poller)));
}

RoutedTransport::RoutedTransport(std::vector<std::unique_ptr<Transport>> parts, std::vector<Route> routes, int rank,
                                 Poller poller)
    : parts_(std::move(parts)), routes_(std::move(routes)), rank_(rank), poller_(std::move(poller)) {
  for (const auto& one : parts_) name_ += (name_.empty() ? "" : "+") + std::string(one->name());
}

std::optional<Ticket> RoutedTransport::send(Channel channel, uint32_t tag, ConstBytes bytes) {
  const Route& to = route(channel.peer);
  return stamp(part(to).send({to.peer, channel.index}, tag, bytes), to.part);
}

std::optional<Ticket> RoutedTransport::recv(Channel channel, uint32_t tag, Bytes bytes) {
  const Route& from = route(channel.peer);
  return stamp(part(from).recv({from.peer, channel.index}, tag, bytes), from.part);
}

// Adds the part to a ticket; done() takes it out again.
std::optional<Ticket> RoutedTransport::stamp(std::optional<Ticket> ticket, int part) const {
  if (ticket) ticket->stream = ticket->stream * static_cast<uint32_t>(parts_.size()) + static_cast<uint32_t>(part);
  return ticket;
}

bool RoutedTransport::done(Ticket ticket) const {
  const auto count = static_cast<uint32_t>(parts_.size());
  return parts_[ticket.stream % count]->done({ticket.stream / count, ticket.position});
}

bool RoutedTransport::progress() {
  bool moved = false;
  for (const auto& one : parts_) moved |= one->progress();
  return moved;
}

Status RoutedTransport::check_connections() {
  for (const auto& one : parts_) FDL_RETURN_IF_ERROR(one->check_connections());
  return {};
}

std::vector<int> RoutedTransport::awaited_peers() const {
  std::vector<int> peers;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::vector<int> awaited = parts_[i]->awaited_peers();
    for (int peer = 0; peer < static_cast<int>(routes_.size()); ++peer) {
      if (peer == rank_ || route(peer).part != static_cast<int>(i)) continue;
      if (std::ranges::find(awaited, route(peer).peer) != awaited.end()) peers.push_back(peer);
    }
  }
  return peers;
}

Status RoutedTransport::peer_status(int peer) const { return part(route(peer)).peer_status(route(peer).peer); }

Status RoutedTransport::channel_status(Channel channel) const {
  return part(route(channel.peer)).channel_status({route(channel.peer).peer, channel.index});
}

// The status of the first peer that has failed, through the part that reaches it.
Status RoutedTransport::status() const {
  for (int peer = 0; peer < static_cast<int>(routes_.size()); ++peer) {
    if (peer != rank_) FDL_RETURN_IF_ERROR(peer_status(peer));
  }
  return {};
}

// prepared_ counts the parts to which finish_sleep() must pass on, also if one refuses.
bool RoutedTransport::prepare_to_sleep() {
  for (prepared_ = 0; prepared_ < parts_.size();) {
    if (!parts_[prepared_++]->prepare_to_sleep()) return false;
  }
  return true;
}

void RoutedTransport::finish_sleep() {
  for (; prepared_ > 0; --prepared_) parts_[prepared_ - 1]->finish_sleep();
}

PeerActivity RoutedTransport::peer_activity() {
  PeerActivity all;
  for (const auto& part : parts_) all.add(part->peer_activity());
  return all;
}

}  // namespace fdl
