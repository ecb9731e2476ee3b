// TcpEndpoint passes demands to the connector's thread, and connections from there to the transport. Its public
// functions run in the thread that drives the transport.
#include <utility>

#include "system/handshake.h"
#include "transports/tcp/assembly.h"
#include "transports/tcp/connector.h"
#include "transports/tcp/stream.h"

namespace fdl {
namespace {

std::string name_of_communicator(const std::string& id) {
  const Digest digest = hmac_sha256("farandole communicator", id);
  return hex(std::as_bytes(std::span(digest).first(16)));
}

}  // namespace

void say_goodbye(const Membership& membership, int peer, TcpConnection connection) {
  auto protection = tcp_protection(membership, peer, connection);
  TcpStream(std::move(connection.fd), std::move(protection)).leave();
}

TcpEndpoint::TcpEndpoint(Membership membership, std::vector<int> streams, Event event)
    : membership_(std::move(membership)),
      streams_(std::move(streams)),
      name_(name_of_communicator(membership_.id)),
      event_(std::move(event)) {}

int TcpEndpoint::connections_with(int member) const {
  if (member < 0 || member >= membership_.size() || member == membership_.rank) return 0;
  return kChannelCount * streams_[static_cast<std::size_t>(member)];
}

void TcpEndpoint::demand(Channel channel) {
  if (const auto connector = connector_.lock()) {
    connector->post({TcpConnector::Request::Kind::demand, self_.lock(), channel});
  }
}

std::vector<TcpEndpoint::Arrival> TcpEndpoint::take() {
  const MutexLock lock(mutex_);
  // Under the lock, because the connector rings under it. A ring behind this call would wake the rank again and again.
  event_.clear();
  has_arrivals_.store(false, std::memory_order_relaxed);
  return std::exchange(arrivals_, {});
}

void TcpEndpoint::arrive(Arrival arrival) {
  const MutexLock lock(mutex_);
  if (!closed_) {
    arrivals_.push_back(std::move(arrival));
    has_arrivals_.store(true, std::memory_order_release);
    event_.ring();
  } else if (arrival.connection.fd) {
    say_goodbye(membership_, arrival.peer, std::move(arrival.connection));
  }
}

void TcpEndpoint::end(const Status& why) {
  const MutexLock lock(mutex_);
  ended_ = why;
  has_arrivals_.store(true, std::memory_order_release);
  event_.ring();
}

Status TcpEndpoint::ended() {
  const MutexLock lock(mutex_);
  return ended_;
}

void TcpEndpoint::close() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  for (Arrival& unused : take()) {
    if (unused.connection.fd) say_goodbye(membership_, unused.peer, std::move(unused.connection));
  }
  if (const auto connector = connector_.lock()) connector->post({TcpConnector::Request::Kind::close, self_.lock()});
}

}  // namespace fdl
