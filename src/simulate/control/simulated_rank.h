// ControlPlane::Rank is the part of one rank: the shipped protocol of its connection, and how far its start is.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <set>
#include <string>

#include "simulate/control/control_plane.h"

namespace fdl {

// What a rank says of itself, as long as on real hosts.
struct SimulatedHello {
  static std::string host_name(int host) { return fmt::format("node-{:05}", host); }
  static CoordinatorClient::Hello of(const Cluster& cluster, int rank) {
    const int host = cluster.host_of(rank);
    return {.rank = rank,
            .size = cluster.ranks(),
            .host_name = host_name(host),
            .boot_id = fmt::format("{:08x}-0000-4000-8000-000000000000", host),
            .process_id = 10000 + rank,
            .recovery =
                fmt::format("10.{}.{}.{}:{}", 100 + host / 65536, host / 256 % 256, host % 256, 32768 + rank % 28000)};
  }
};

struct ControlPlane::Rank {
  Rank(const Cluster& cluster, int rank, const CoordinatorClient::Limits& limits)
      : protocol(SimulatedHello::of(cluster, rank), limits), program(cluster, rank) {}

  ClientProtocol protocol;
  StartProgram program;
  bool is_alive = true;
  bool is_member = false;  // the coordinator has its hello
  bool is_in_world = false;
  uint64_t open_request = 0;  // 0: none
  int reached = 0;            // milestones
  int64_t messages = 0;       // sent and received
  int64_t last_to_server_ns = 0;
  int64_t last_to_rank_ns = 0;

  bool waits = false;   // in the allreduce
  int turns = 0;        // of its watch
  std::set<int> knows;  // victims that it knows
};

}  // namespace fdl
