// PartTransport exposes some of a communicator's ranks as a Transport of their own, over the shared transport.
#pragma once

#include <vector>

#include "contract/transport.h"

namespace fdl {

// members[i] is the rank in the whole of rank i in the part. The whole outlives this object. One thread drives both.
// Other users of the same channels of the whole must use them in the same order on both sides; collectives that all
// ranks call in one order do. Sleeping is left to the owner of the whole, because this object has no descriptor of its
// own: nested epoll sets are limited in depth.
class PartTransport final : public Transport {
 public:
  PartTransport(Transport& whole, std::vector<int> members) : whole_(whole), members_(std::move(members)) {}

  std::string_view name() const override { return whole_.name(); }
  std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) override {
    return whole_.send(in_whole(channel), tag, bytes);
  }
  std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) override {
    return whole_.recv(in_whole(channel), tag, bytes);
  }
  bool done(Ticket ticket) const override { return whole_.done(ticket); }
  void keep(const std::shared_ptr<void>& memory, std::size_t bytes) override { whole_.keep(memory, bytes); }
  Status check_connections() override { return whole_.check_connections(); }
  bool progress() override { return whole_.progress(); }
  Status peer_status(int peer) const override { return whole_.peer_status(in_whole(Channel{peer}).peer); }
  Status channel_status(Channel channel) const override { return whole_.channel_status(in_whole(channel)); }
  Status status() const override { return whole_.status(); }
  double round_trip_s(int peer) const override { return whole_.round_trip_s(in_whole(Channel{peer}).peer); }

  int wake_fd() const override { return -1; }
  bool prepare_to_sleep() override { return true; }
  void finish_sleep() override {}

 private:
  Channel in_whole(Channel channel) const { return {members_[static_cast<std::size_t>(channel.peer)], channel.index}; }

  Transport& whole_;
  std::vector<int> members_;
};

}  // namespace fdl
