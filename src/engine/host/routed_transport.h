// RoutedTransport combines several transports into one: each peer is reached through one of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "contract/transport.h"
#include "system/poller.h"

namespace fdl {

// Which part reaches a peer, and the peer's rank within that part. The entry of the own rank is never read.
struct Route {
  int part = 0;
  int peer = 0;
};

class RoutedTransport final : public Transport {
 public:
  // routes[r] is the route to rank r of the whole. The parts' descriptors are watched through one poller.
  static Result<std::unique_ptr<Transport>> make(std::vector<std::unique_ptr<Transport>> parts,
                                                 std::vector<Route> routes, int rank);

  std::string_view name() const override { return name_; }
  std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) override;
  std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) override;
  bool done(Ticket ticket) const override;
  void keep(const std::shared_ptr<void>& memory, std::size_t bytes) override {
    for (const auto& part : parts_) part->keep(memory, bytes);
  }
  Status check_connections() override;
  std::vector<int> awaited_peers() const override;
  SliceCounts sent_to(int peer) override { return part(route(peer)).sent_to(route(peer).peer); }
  void note_sent_by(int peer, const SliceCounts& sent) override {
    part(route(peer)).note_sent_by(route(peer).peer, sent);
  }
  bool progress() override;
  Status peer_status(int peer) const override;
  Status channel_status(Channel channel) const override;
  Status status() const override;
  double round_trip_s(int peer) const override { return part(route(peer)).round_trip_s(route(peer).peer); }

  int wake_fd() const override { return poller_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override;
  PeerActivity peer_activity() override;

 private:
  RoutedTransport(std::vector<std::unique_ptr<Transport>> parts, std::vector<Route> routes, int rank, Poller poller);

  const Route& route(int peer) const { return routes_[static_cast<std::size_t>(peer)]; }
  Transport& part(const Route& route) const { return *parts_[static_cast<std::size_t>(route.part)]; }
  std::optional<Ticket> stamp(std::optional<Ticket> ticket, int part) const;

  std::vector<std::unique_ptr<Transport>> parts_;
  std::vector<Route> routes_;
  int rank_;
  Poller poller_;  // holds the parts' descriptors; its own becomes readable when any of them is
  std::string name_;
  std::size_t prepared_ = 0;  // how many parts prepare_to_sleep() has prepared
};

}  // namespace fdl
