// StartProgram lists the requests that one rank makes of the coordinator until it is in the world, one after the other.
//
// Runtime::start() (src/runtime/lifecycle) makes the same requests: it waits for all ranks, finds the ranks that share
// a host, sets up shared memory, and commits the first communicator. It blocks on sockets, so the simulation cannot run
// it and repeats the order of its requests here. The shipped coordinator answers them.
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
