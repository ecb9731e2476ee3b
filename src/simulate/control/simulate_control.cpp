// Both functions run a start first; a loss happens to a world in which all ranks wait in one allreduce.
#include "simulate/control/simulate_control.h"

#include <fmt/core.h>

#include <vector>

namespace fdl {
namespace {

using Milestone = StartProgram::Milestone;

double to_s(int64_t ns) { return static_cast<double>(ns) / 1e9; }

Result<std::vector<int>> ranks_of(const SimulatedVictim& victim, const Cluster& cluster) {
  const bool is_host = victim.kind == SimulatedVictim::Kind::host;
  const int most = is_host ? cluster.hosts : cluster.ranks();
  const int number = victim.kind == SimulatedVictim::Kind::coordinator ? 0 : victim.number;
  if (number < 0 || number >= most) {
    return Status(Code::invalid_argument,
                  fmt::format("there is no {} {}: the last one is {}", is_host ? "host" : "rank", number, most - 1));
  }
  const int each = is_host ? cluster.ranks_per_host : 1;
  if (each == cluster.ranks()) {
    return Status(Code::invalid_argument, "no rank is left that could know of the loss: give more hosts");
  }
  std::vector<int> ranks;
  for (int i = 0; i < each; ++i) ranks.push_back(number * each + i);
  return ranks;
}

}  // namespace

Result<SimulatedStart> simulate_start(const Cluster& cluster, const ControlCosts& costs) {
  ControlPlane plane(cluster, costs);
  FDL_RETURN_IF_ERROR(plane.start());
  const ControlPlane::Traffic& traffic = plane.traffic();
  return SimulatedStart{.connected_s = to_s(plane.connected_ns()),
                        .table_s = to_s(plane.reached_ns(Milestone::table)),
                        .hosts_s = to_s(plane.reached_ns(Milestone::hosts)),
                        .memory_s = to_s(plane.reached_ns(Milestone::memory)),
                        .seconds = to_s(plane.reached_ns(Milestone::world)),
                        .first_rank_s = to_s(plane.first_in_world_ns()),
                        .connections = cluster.ranks(),
                        .received = traffic.received,
                        .sent = traffic.sent,
                        .sent_bytes = traffic.sent_bytes,
                        .most_messages = plane.most_messages(),
                        .repeated_calls = traffic.refused_calls};
}

Result<SimulatedLoss> simulate_loss(const Cluster& cluster, const ControlCosts& costs, const SimulatedVictim& victim) {
  FDL_ASSIGN_OR_RETURN(const std::vector<int> victims, ranks_of(victim, cluster));
  ControlPlane plane(cluster, costs);
  FDL_RETURN_IF_ERROR(plane.start());
  const ControlPlane::Traffic before = plane.traffic();
  const int64_t begin_ns = plane.elapsed_ns() + seconds_to_ns(victim.at_s);
  const double limit_s = 10 * (costs.limits.suspect_after_s + costs.limits.lost_after_s) + 60;
  FDL_RETURN_IF_ERROR(plane.lose(victims, seconds_to_ns(victim.at_s), victim.is_silent, seconds_to_ns(limit_s)));
  return SimulatedLoss{.victims = static_cast<int>(victims.size()),
                       .first_s = to_s(plane.first_knows_ns() - begin_ns),
                       .last_s = to_s(plane.last_knows_ns() - begin_ns),
                       .warned_s = plane.last_warned_ns() < 0 ? -1 : to_s(plane.last_warned_ns() - begin_ns),
                       .received = plane.traffic().received - before.received,
                       .sent = plane.traffic().sent - before.sent,
                       .most_messages = plane.most_messages()};
}

}  // namespace fdl
