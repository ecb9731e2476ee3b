// CoordinatorLink is a simulated rank's connection to its coordinator: the shipped ClientProtocol between simulated
// connections, as SocketClient is between sockets.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bootstrap/client/client_protocol.h"
#include "tests/simulation/network.h"

namespace fdl::simulation {

class CoordinatorLink {
 public:
  CoordinatorLink(End end, const CoordinatorClient::Hello& hello, const CoordinatorClient::Limits& limits)
      : protocol_(hello, limits), end_(std::move(end)) {
    protocol_.begin();
    carry_out();
  }

  ~CoordinatorLink() { close(); }
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  ClientProtocol& protocol() { return protocol_; }
  const ClientProtocol& protocol() const { return protocol_; }

  // As SocketClient::progress().
  void progress(int64_t now_ns, Simulation& simulation) {
    if (!is_connected_) return;
    std::vector<Packet> packets;
    const End::State state = end_.receive(packets);
    std::vector<CoordinatorMessage> messages;
    for (const Packet& packet : packets) {
      auto message = decode(packet.bytes);
      if (!message.ok()) {
        simulation.violated("a rank cannot read a message of the coordinator: " + message.status().text());
        continue;
      }
      messages.push_back(message.take());
    }
    protocol_.receive(std::move(messages), now_ns);
    if (state == End::State::closed) protocol_.closed(now_ns);
    if (state == End::State::cut_off) protocol_.cut_off(now_ns);
    if (protocol_.must_give_up()) protocol_.give_up(now_ns);
    carry_out();
  }

  // Sends what the protocol has queued. After the loss of the coordinator the connection is closed.
  void carry_out() {
    for (const CoordinatorMessage& message : protocol_.take_outgoing()) {
      if (is_connected_) end_.send({.bytes = encode(message)});
    }
    if (!protocol_.is_open()) close();
  }
  void close() {
    if (std::exchange(is_connected_, false)) end_.close();
  }

 private:
  ClientProtocol protocol_;
  End end_;
  bool is_connected_ = true;
};

}  // namespace fdl::simulation
