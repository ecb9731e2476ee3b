// Cluster's checks name the value and the range; its links are numbered by hosts, then ports, then racks.
#include "simulate/cluster.h"

#include <cmath>

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

}  // namespace

Status check(const Cluster& cluster) {
  if (cluster.hosts < 1 || cluster.ranks_per_host < 1) return refuse("a cluster has at least one host and one rank");
  if (static_cast<int64_t>(cluster.hosts) * cluster.ranks_per_host > 1 << 16)
    return refuse(std::to_string(cluster.hosts) + " hosts with " + std::to_string(cluster.ranks_per_host) +
                  " ranks each are more than 65536 ranks, the largest group of the algorithms");
  FDL_RETURN_IF_ERROR(check_link(cluster.network, "network"));
  FDL_RETURN_IF_ERROR(check_link(cluster.local, "local"));
  if (cluster.hosts_per_rack < 0 || cluster.hosts_per_rack > cluster.hosts)
    return refuse("a rack holds between 1 and all " + std::to_string(cluster.hosts) + " hosts, not " +
                  std::to_string(cluster.hosts_per_rack));
  if (!(cluster.oversubscription >= 1) || cluster.oversubscription > 1000)
    return refuse("the oversubscription of a rack's uplink is between 1 and 1000");
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

double ClusterLinks::bytes_per_s(int32_t link) const {
  if (link < local_base()) return cluster_->network.bytes_per_s;
  if (link < rack_base()) return cluster_->local.bytes_per_s;
  return cluster_->network.bytes_per_s * cluster_->hosts_per_rack / cluster_->oversubscription;
}

LinkPath ClusterLinks::path(int from, int to, int simulated_from, int simulated_to) const {
  LinkPath path;
  if (cluster_->is_local(from, to)) {
    if (cluster_->local_ports) {
      path.add(local_base() + 2 * simulated_from);
      path.add(local_base() + 2 * simulated_to + 1);
    } else {
      path.add(local_base() + cluster_->host_of(simulated_from));
    }
    return path;
  }
  const int from_host = cluster_->host_of(simulated_from);
  const int to_host = cluster_->host_of(simulated_to);
  path.add(2 * from_host);
  if (cluster_->rack_of_host(cluster_->host_of(from)) != cluster_->rack_of_host(cluster_->host_of(to))) {
    path.add(rack_base() + 2 * cluster_->rack_of_host(from_host));
    path.add(rack_base() + 2 * cluster_->rack_of_host(to_host) + 1);
  }
  path.add(2 * to_host + 1);
  return path;
}

}  // namespace fdl
