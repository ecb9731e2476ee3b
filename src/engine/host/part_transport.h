// PartTransport: a part of a communicator's ranks over the transport of the whole, which others use as well.
#pragma once

#include <vector>

#include "contract/transport.h"

namespace fdl {

// members[i] is the rank in the whole of rank i in the part. The whole outlives this object, and may be driven beside
// it: one thread does all of it. Who uses a channel of the whole as well must do so in the same order on both sides,
// which collectives that all ranks call in one order do. To sleep is for the owner of the whole, who sleeps on that:
// there is nothing here to wake for, and epoll sets nest only so deep.
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
