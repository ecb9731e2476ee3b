// NodePort limits the number and the time of strangers: connections that have not yet authenticated and sent a hello.
#include "cli/elastic/node_port.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "base/log.h"
#include "system/socket.h"

namespace fdl {
namespace {

constexpr uint64_t kListener = 0;
constexpr std::size_t kMostStrangers = 64;
constexpr double kCloseTimeout_s = 5;       // for a node to read the last messages after hang_up()
constexpr std::size_t kMostUnsent = 4_MiB;  // a node that reads less than it is sent is dropped

}  // namespace

Result<std::unique_ptr<NodePort>> NodePort::open(const Options& options) {
  FDL_ASSIGN_OR_RETURN(auto listener,
                       CoordinatorListener::open(options.address, options.interfaces, options.port_base));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_RETURN_IF_ERROR(listener->watch(poller, kListener));
  return std::unique_ptr<NodePort>(new NodePort(options, std::move(listener), std::move(poller)));
}

// Does not block: the deadline of wait() has already passed.
void NodePort::serve() {
  std::array<Poller::Ready, 64> ready;
  const std::size_t count = poller_.wait(ready, Deadline::at_ns(0));
  for (std::size_t i = 0; i < count; ++i) {
    if (ready[i].token == kListener) {
      accept_all();
      continue;
    }
    if (ready[i].writable) flush(ready[i].token);
    if (ready[i].readable || ready[i].writable) serve_one(ready[i].token);
  }
}

// ---- Strangers ----

void NodePort::accept_all() {
  while (UniqueFd fd = listener_->accept(poller_, "the port for nodes")) {
    if (is_of_another_user(fd.get()) || count_strangers() >= kMostStrangers) {
      ++strangers_;
      continue;
    }
    const Peer peer = next_peer_++;
    if (!poller_.add(fd.get(), peer).ok()) continue;
    Connection& connection = connections_[peer];
    connection.fd = std::move(fd);
    connection.introduction = std::make_unique<Introduction>(Introduction::Role::server, options_.job_key, kNodePurpose,
                                                             options_.name.substr(0, 256));
    connection.timeout = Deadline::after_seconds(options_.stranger_timeout_s);
    serve_one(peer);
  }
}

std::size_t NodePort::count_strangers() const {
  return static_cast<std::size_t>(std::count_if(connections_.begin(), connections_.end(),
                                                [](const auto& one) { return !one.second.has_sent_hello; }));
}

void NodePort::drop_stranger(Peer peer) {
  ++strangers_;
  close(peer);
}

// ---- Connections ----

void NodePort::serve_one(Peer peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  if (found->second.socket || introduce(peer, found->second)) receive(peer, found->second);
}

// Returns true once both ends have authenticated; false before that, and when the connection was dropped.
bool NodePort::introduce(Peer peer, Connection& connection) {
  auto through = connection.introduction->advance(connection.fd.get());
  if (!through.ok()) {
    drop_stranger(peer);
    return false;
  }
  const bool write = connection.introduction->has_output();
  if (write != connection.watches_write && poller_.change(connection.fd.get(), peer, true, write).ok()) {
    connection.watches_write = write;
  }
  if (!*through) return false;
  survive_outages(connection.fd.get(), options_.lost_after_s);
  connection.socket = std::make_unique<FramedSocket>(
      std::move(connection.fd), connection.introduction->introduced().session_key, Direction::to_coordinator);
  connection.introduction.reset();
  return true;
}

void NodePort::receive(Peer peer, Connection& connection) {
  std::vector<CoordinatorMessage> messages;
  const FramedSocket::State state = connection.socket->receive(messages);
  for (CoordinatorMessage& message : messages) {
    if (connection.is_closing) break;
    // The first message must be a hello, and no later one may be.
    if ((message.kind == CoordinatorMessage::Kind::node_hello) == connection.has_sent_hello) return drop_stranger(peer);
    connection.has_sent_hello = true;
    connection.timeout = Deadline::never();
    received_.push_back({.peer = peer, .message = std::move(message)});
  }
  if (state == FramedSocket::State::broken) return drop_stranger(peer);
  if (state == FramedSocket::State::closed) close(peer);
}

void NodePort::send(Peer peer, const CoordinatorMessage& message) {
  const auto found = connections_.find(peer);
  if (found == connections_.end() || !found->second.socket || found->second.is_closing) return;
  found->second.socket->send(message);
  flush(peer);
}

void NodePort::flush(Peer peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end() || !found->second.socket) return;
  Connection& connection = found->second;
  connection.socket->flush();
  if (connection.socket->unsent_bytes() > kMostUnsent) return close(peer);
  const bool write = connection.socket->unsent_bytes() > 0;
  if (write != connection.watches_write && poller_.change(connection.socket->fd(), peer, true, write).ok()) {
    connection.watches_write = write;
  }
  // The other end reads everything and closes. Closing here could discard data that it has not read yet.
  if (connection.is_closing && !write) ::shutdown(connection.socket->fd(), SHUT_WR);
}

void NodePort::hang_up(Peer peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end() || found->second.is_closing) return;
  if (!found->second.socket) return close(peer);
  found->second.is_closing = true;
  found->second.timeout = Deadline::after_seconds(kCloseTimeout_s);
  flush(peer);
}

// Only a node that has sent its hello is reported as closed; strangers are never reported.
void NodePort::close(Peer peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  const Connection& connection = found->second;
  if (connection.has_sent_hello && !connection.is_closing) {
    received_.push_back({.peer = peer,
                         .is_closed = true,
                         .has_ended = connection.socket != nullptr && connection.socket->was_closed_by_peer()});
  }
  poller_.remove(connection.socket ? connection.socket->fd() : connection.fd.get());
  connections_.erase(found);
}

Deadline NodePort::next() const {
  Deadline next = listener_->pause_ends();
  for (const auto& [peer, connection] : connections_) next = next.earlier(connection.timeout);
  return next;
}

void NodePort::tick() {
  listener_->resume(poller_);
  std::vector<Peer> over;
  for (const auto& [peer, connection] : connections_) {
    if (connection.timeout.passed()) over.push_back(peer);
  }
  for (const Peer peer : over) connections_.at(peer).is_closing ? close(peer) : drop_stranger(peer);
}

}  // namespace fdl
