// TcpConnector::Loop is the connector's thread. Its state belongs to it alone: transports send it requests, and it
// delivers arrivals.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transports/tcp/assembly.h"
#include "transports/tcp/connector.h"

namespace fdl {

class TcpConnector::Loop final : private TcpLinks {
 public:
  Loop(const Membership& world, TcpConnector& connector, Event requests, Listening listening, Poller poller)
      : TcpLinks(world.session_key.empty() ? world.job_key : world.session_key,
                 fmt::format("tcp connector {} {}", world.id, tcp_protection_of(world)),
                 std::to_string(world.me().world_rank), world.size(), std::move(listening), std::move(poller)),
        connector_(connector),
        requests_(std::move(requests)),
        is_first_rank_(world.me().world_rank == 0),
        most_parked_(std::max(kLeastParked, 2 * world.members.size())),
        patience_s_(world.config->start_timeout_s + world.config->lost_after_s) {}

  Status begin(const Membership& world) {
    FDL_RETURN_IF_ERROR(TcpLinks::begin());
    FDL_RETURN_IF_ERROR(poller().add(requests_.fd(), kRequestsToken));
    return connector_.exchange_->publish(key_of(world.me().world_rank), join_addresses(listening().addresses));
  }
  void wake() const { requests_.ring(); }
  void run();

 private:
  static constexpr uint64_t kRequestsToken = ~uint64_t{0};
  // Callers for communicators that are not made here yet: at least so many, and twice as many as there are ranks. The
  // oldest is dropped for a new one, and calls again.
  static constexpr std::size_t kLeastParked = 256;
  // A fetch of addresses blocks the thread. They are published before any communicator is made, so it rarely waits for
  // more than its answer. That may take long while many ranks start: asking again would only add to it.
  static constexpr int64_t kFetchNs = 1'000'000'000;

  // A connection of a communicator. Those that were never used are not in the map.
  struct Slot {
    uint32_t generation = 0;
    bool made = false;
    std::size_t place = 0;  // of this rank's call, unless made
    Deadline give_up = Deadline::never();
  };
  struct Open {
    std::shared_ptr<TcpEndpoint> endpoint;
    std::map<std::pair<int, int>, Slot> slots;  // by peer and number
  };
  using Call = std::pair<Open*, Slot*>;

  static std::string key_of(int world_rank) { return "tcp/" + std::to_string(world_rank); }

  void handle_requests();
  void open(const std::shared_ptr<TcpEndpoint>& endpoint);
  void demand(Open& open, Channel channel);
  void demand_one(Open& open, int peer, int number, uint32_t generation);
  void relieve();
  void make_room();
  void begin_calls();
  void close(const TcpEndpoint& endpoint);
  void admit(Open& open, std::size_t place, const TcpCaller& caller);
  void park(std::size_t place, const TcpCaller& caller);
  void deliver(TcpEndpoint& endpoint, TcpEndpoint::Arrival arrival);
  // Gives up a call.
  void fail(std::size_t place, const Status& why, bool left = false);
  // The communicator and the slot of this rank's call.
  Call call_at(std::size_t place);
  int callee_of(std::size_t place);  // its rank in the world

  Status on_accepted(std::size_t place) override;
  Status on_established(std::size_t place) override { return keep(place); }
  Status on_round_failed(std::size_t place) override;
  Status on_out_of_resources(std::size_t place, const Status& why) override;
  Status on_kept(std::size_t place) override;
  Status on_rested(std::size_t place) override;
  void on_other(uint64_t /*token*/) override { handle_requests(); }

  TcpConnector& connector_;
  const Event requests_;
  const bool is_first_rank_;
  const std::size_t most_parked_;
  const double patience_s_;  // until a call is given up
  std::map<std::string, Open> open_;
  std::map<int, std::vector<Address>> addresses_;  // by world rank
  std::vector<std::size_t> demanded_;              // places of calls that have not begun
  std::map<std::size_t, TcpCaller> parked_;        // by place
  std::deque<std::size_t> parked_in_order_;        // their places, and those of some that are not parked any more
  std::set<std::string> ended_;
  std::deque<std::string> ended_in_order_;
  bool stopped_ = false;
  bool warned_ = false;
  bool told_limit_ = false;
};

}  // namespace fdl
