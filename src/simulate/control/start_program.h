// StartProgram lists the requests that one rank makes of the coordinator until it is in the world, one after the other.
//
// The requests are those of Runtime::start() (src/runtime/lifecycle) and of what it calls: the wait for all ranks, the
// search for ranks that share a host, the set-up of shared memory, and the commit of the first communicator. The code
// there blocks on sockets, so its order is repeated here; what answers is the shipped coordinator.
#pragma once

#include <cstdint>
#include <optional>

#include "bootstrap/coordinator/coordinator_wire.h"
#include "simulate/cluster.h"

namespace fdl {

class StartProgram {
 public:
  // What a rank has when the requests up to here are answered.
  enum class Milestone { table, hosts, memory, world };
  static constexpr int kMilestones = 4;

  StartProgram(const Cluster& cluster, int rank) : cluster_(&cluster), rank_(rank) {}

  // The next request; empty once this rank is in the world. `timeout_ns` is the limit of a wait.
  std::optional<CoordinatorMessage> next(int64_t timeout_ns);
  // The milestones that the answered requests have reached.
  int reached() const { return reached_; }

 private:
  enum class Step {
    wait,
    publish_socket,
    fetch_socket,
    publish_knock,
    fetch_knocks,
    publish_members,
    fetch_members,
    collect_hosts,
    publish_hosts,
    fetch_hosts,
    publish_memory,
    fetch_memory,
    publish_address,
    publish_transport,
    fetch_transport,
    publish_collectives,
    fetch_collectives,
    publish_made,
    collect_made,
    publish_all,
    fetch_all,
    end,
  };

  std::optional<CoordinatorMessage> request(Step step, int64_t timeout_ns) const;
  std::optional<CoordinatorMessage> request_about_hosts(Step step, int64_t timeout_ns) const;
  std::optional<CoordinatorMessage> request_of_commit(Step step, int64_t timeout_ns) const;
  int leader() const { return rank_ - rank_ % cluster_->ranks_per_host; }
  bool leads() const { return rank_ == leader(); }
  bool shares_host() const { return cluster_->ranks_per_host > 1; }

  const Cluster* cluster_;
  int rank_;
  int step_ = 0;
  int reached_ = 0;
};

}  // namespace fdl
