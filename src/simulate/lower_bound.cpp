// The latency part is the optimal broadcast of the LogP model (R. Karp et al., "Optimal broadcast and summation in the
// LogP model", SPAA 1993). Both parts treat each host, and each group of a
// level of switches, as one participant.
#include "simulate/lower_bound.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace fdl {
namespace {

// The bytes that must leave or enter one of `parties` equal sets of ranks, by the busier direction.
double least_bytes(Collective collective, double parties, double ranks, double bytes) {
  const double others = (parties - 1) / parties;
  switch (collective) {
    case Collective::allreduce:
      return 2 * others * bytes;
    case Collective::allgather:
    case Collective::reduce_scatter:
    case Collective::gather:
    case Collective::scatter:
      return others * bytes;
    case Collective::alltoall:
      return ranks / parties * others * bytes;
    case Collective::reduce:
    case Collective::broadcast:
      return parties > 1 ? bytes : 0;
    case Collective::barrier:
      return 0;
  }
  return 0;
}

// The bytes that all ranks of one host send to each other.
double all_bytes(Collective collective, double ranks, double bytes) {
  switch (collective) {
    case Collective::allreduce:
      return 2 * (ranks - 1) * bytes;
    case Collective::gather:
    case Collective::scatter:
      return (ranks - 1) / ranks * bytes;
    case Collective::barrier:
      return 0;
    default:
      return (ranks - 1) * bytes;
  }
}

// The time until one party has reached all. Each that is reached sends a message every `gap_s`, which arrives `hop_s`
// after it began.
double broadcast_s(int parties, double hop_s, double gap_s) {
  if (parties == 1) return 0;
  if (gap_s == 0) return hop_s;
  std::priority_queue<double, std::vector<double>, std::greater<>> arrivals;
  arrivals.push(hop_s);
  double last_s = 0;
  for (int reached = 1; reached < parties; ++reached) {
    last_s = arrivals.top();
    arrivals.pop();
    arrivals.push(last_s + gap_s);
    arrivals.push(last_s + hop_s);
  }
  return last_s;
}

double latency_bound_s(const Cluster& cluster) {
  const auto bound = [](const ClusterLink& link, double latency_s, int parties, int senders) {
    const double gap_s = std::max(link.overhead_s, link.gap_s) / senders;
    return broadcast_s(parties, latency_s + 2 * link.overhead_s, gap_s);
  };
  if (cluster.hosts == 1) return bound(cluster.local, cluster.local.latency_s, cluster.ranks_per_host, 1);
  double latency_s = cluster.network.latency_s;
  double bound_s = bound(cluster.network, latency_s, cluster.hosts, cluster.ranks_per_host);
  for (const SwitchLevel& level : cluster.switches) {
    latency_s += level.latency_s;
    bound_s = std::max(bound_s,
                       bound(cluster.network, latency_s, cluster.groups(level), level.hosts * cluster.ranks_per_host));
  }
  return bound_s;
}

double bandwidth_bound_s(Collective collective, const Cluster& cluster, double bytes) {
  const double ranks = cluster.ranks();
  if (cluster.hosts == 1) {
    const double crossing =
        cluster.local_ports ? least_bytes(collective, ranks, ranks, bytes) : all_bytes(collective, ranks, bytes);
    return crossing / cluster.local.bytes_per_s;
  }
  double bound_s = least_bytes(collective, cluster.hosts, ranks, bytes) / cluster.network.bytes_per_s;
  const std::vector<double> uplinks = uplink_bytes_per_s(cluster);
  for (std::size_t i = 0; i < uplinks.size(); ++i) {
    const SwitchLevel& level = cluster.switches[i];
    if (cluster.groups(level) == 1 || !cluster.has_equal_groups(level)) continue;
    bound_s = std::max(bound_s, least_bytes(collective, cluster.groups(level), ranks, bytes) / uplinks[i]);
  }
  return bound_s;
}

}  // namespace

double lower_bound_s(Collective collective, const Cluster& cluster, int64_t bytes) {
  return std::max(latency_bound_s(cluster), bandwidth_bound_s(collective, cluster, static_cast<double>(bytes)));
}

double bus_factor(Collective collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (collective) {
    case Collective::allreduce:
      return 2 * others;
    case Collective::allgather:
    case Collective::reduce_scatter:
    case Collective::alltoall:
      return others;
    default:
      return 1;
  }
}

}  // namespace fdl
