// Cluster's checks name the value and the range; its links are numbered by hosts, then ports, then levels.
#include "simulate/cluster.h"

#include <cmath>
#include <utility>

namespace fdl {
namespace {

Status refuse(const std::string& what) { return Status(Code::invalid_argument, what); }

Status check_link(const ClusterLink& link, const std::string& name) {
  if (!(link.bytes_per_s > 0) || !std::isfinite(link.bytes_per_s))
    return refuse("the bandwidth of the " + name + " link must be above 0");
  for (const double seconds : {link.latency_s, link.overhead_s, link.gap_s}) {
    if (!(seconds >= 0) || seconds > 3600)
      return refuse("latency, overhead and gap of the " + name + " link must be between 0 and an hour");
  }
  return {};
}

std::string hosts_text(int hosts) { return std::to_string(hosts) + (hosts == 1 ? " host" : " hosts"); }

// `inner`: the level inside of this one; null for the innermost.
Status check_level(const Cluster& cluster, const SwitchLevel& level, const SwitchLevel* inner) {
  if (level.name.empty()) return refuse("a level of switches has no name");
  if (level.hosts < 1 || level.hosts > cluster.hosts)
    return refuse("each " + level.name + " holds between 1 and all " + std::to_string(cluster.hosts) + " hosts, not " +
                  std::to_string(level.hosts));
  if (inner != nullptr && (level.hosts <= inner->hosts || level.hosts % inner->hosts != 0))
    return refuse("each " + level.name + " has " + hosts_text(level.hosts) +
                  ", which is not a larger multiple of the " + hosts_text(inner->hosts) + " of each " + inner->name);
  if (!(level.oversubscription >= 1) || level.oversubscription > 1000)
    return refuse("the oversubscription of the uplink of a " + level.name + " is between 1 and 1000");
  if (!(level.latency_s >= 0) || level.latency_s > 3600)
    return refuse("the latency between two groups of the level " + level.name + " is between 0 and an hour");
  return {};
}

}  // namespace

std::size_t Cluster::levels_crossed(int from, int to) const {
  std::size_t crossed = 0;
  while (crossed < switches.size() &&
         host_of(from) / switches[crossed].hosts != host_of(to) / switches[crossed].hosts) {
    ++crossed;
  }
  return crossed;
}

double Cluster::latency_s(int from, int to) const {
  double seconds = link(from, to).latency_s;
  const std::size_t crossed = levels_crossed(from, to);
  for (std::size_t level = 0; level < crossed; ++level) seconds += switches[level].latency_s;
  return seconds;
}

Status check(const Cluster& cluster) {
  if (cluster.hosts < 1 || cluster.ranks_per_host < 1) return refuse("a cluster has at least one host and one rank");
  if (static_cast<int64_t>(cluster.hosts) * cluster.ranks_per_host > 1 << 16)
    return refuse(std::to_string(cluster.hosts) + " hosts with " + std::to_string(cluster.ranks_per_host) +
                  " ranks each are more than 65536 ranks, the largest group of the algorithms");
  FDL_RETURN_IF_ERROR(check_link(cluster.network, "network"));
  FDL_RETURN_IF_ERROR(check_link(cluster.local, "local"));
  const SwitchLevel* inner = nullptr;
  for (const SwitchLevel& level : cluster.switches)
    FDL_RETURN_IF_ERROR(check_level(cluster, level, std::exchange(inner, &level)));
  if (!(cluster.reduce_bytes_per_s > 0) || !(cluster.copy_bytes_per_s > 0))
    return refuse("the speeds of reductions and copies must be above 0");
  if (!(cluster.noise >= 0) || cluster.noise > 100) return refuse("noise must be between 0 % and 10000 %");
  if (cluster.stragglers < 0 || cluster.stragglers > cluster.ranks())
    return refuse(std::to_string(cluster.stragglers) + " stragglers are not between 0 and all " +
                  std::to_string(cluster.ranks()) + " ranks");
  if (!(cluster.straggler_delay_s >= 0) || cluster.straggler_delay_s > 3600)
    return refuse("stragglers begin between 0 s and an hour late");
  return {};
}

namespace {

// Calls `visit` with the size of each level, and the number of hosts of its groups.
template <typename Visit>
void for_each_level(const Cluster& cluster, const Visit& visit) {
  if (cluster.ranks_per_host > 1) visit(cluster.ranks_per_host, 1);
  int hosts = 1;  // of a group of the level before
  const auto add = [&](int hosts_of_group) {
    if (hosts_of_group > hosts) visit(hosts_of_group / hosts, hosts_of_group);
    hosts = hosts_of_group;
  };
  for (const SwitchLevel& level : cluster.switches) {
    if (cluster.has_equal_groups(level)) add(level.hosts);
  }
  add(cluster.hosts);
}

}  // namespace

std::vector<int> levels_of(const Cluster& cluster) {
  std::vector<int> levels;
  for_each_level(cluster, [&](int size, int) { levels.push_back(size); });
  return levels;
}

std::vector<double> level_latencies_s(const Cluster& cluster) {
  std::vector<double> latencies;
  for_each_level(cluster, [&](int, int hosts) {
    double latency_s = hosts == 1 ? cluster.local.latency_s : cluster.network.latency_s;
    for (const SwitchLevel& level : cluster.switches) {
      if (level.hosts < hosts) latency_s += level.latency_s;
    }
    latencies.push_back(latency_s);
  });
  return latencies;
}

Cluster with_one_rank_a_host(Cluster cluster) {
  cluster.ranks_per_host = 1;
  return cluster;
}

std::vector<double> uplink_bytes_per_s(const Cluster& cluster) {
  std::vector<double> uplinks;
  double below = cluster.network.bytes_per_s;
  int hosts = 1;
  for (const SwitchLevel& level : cluster.switches) {
    below = below * (level.hosts / hosts) / level.oversubscription;
    hosts = level.hosts;
    uplinks.push_back(below);
  }
  return uplinks;
}

ClusterLinks::ClusterLinks(const Cluster& cluster) : cluster_(&cluster) {
  count_ = local_base() + (cluster.local_ports ? 2 * cluster.ranks() : cluster.hosts);
  const std::vector<double> uplinks = uplink_bytes_per_s(cluster);
  for (std::size_t i = 0; i < uplinks.size(); ++i) {
    const SwitchLevel& level = cluster.switches[i];
    levels_.push_back({.first = count_, .hosts = level.hosts, .bytes_per_s = uplinks[i]});
    count_ += 2 * cluster.groups(level);
  }
}

double ClusterLinks::bytes_per_s(int32_t link) const {
  if (link < local_base()) return cluster_->network.bytes_per_s;
  double bytes_per_s = cluster_->local.bytes_per_s;
  for (const Uplinks& level : levels_) {
    if (link >= level.first) bytes_per_s = level.bytes_per_s;
  }
  return bytes_per_s;
}

std::vector<int32_t> ClusterLinks::path(int from, int to, int simulated_from, int simulated_to) const {
  const int from_host = cluster_->host_of(simulated_from);
  const int to_host = cluster_->host_of(simulated_to);
  if (cluster_->is_local(from, to)) {
    if (!cluster_->local_ports) return {local_base() + from_host};
    return {local_base() + 2 * simulated_from, local_base() + 2 * simulated_to + 1};
  }
  std::vector<int32_t> path{2 * from_host};
  const std::size_t crossed = cluster_->levels_crossed(from, to);
  for (std::size_t i = 0; i < crossed; ++i) path.push_back(levels_[i].first + 2 * (from_host / levels_[i].hosts));
  for (std::size_t i = crossed; i-- > 0;) path.push_back(levels_[i].first + 2 * (to_host / levels_[i].hosts) + 1);
  path.push_back(2 * to_host + 1);
  return path;
}

}  // namespace fdl
