// Cluster describes the machines of a simulation: hosts with equally many ranks, the links inside and between hosts,
// racks with an oversubscribed uplink, the speed of memory, noise and stragglers.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace fdl {

// One kind of link in the terms of LogGP: a message of b bytes that is alone takes overhead + b / bandwidth + latency +
// overhead. The first overhead is work of the sender's core, the second of the receiver's.
struct ClusterLink {
  double bytes_per_s = 12.5e9;  // of each direction; 1 / G
  double latency_s = 10e-6;     // L
  double overhead_s = 0.5e-6;   // o
  double gap_s = 0;             // g: between the starts of two messages of one rank; less than o has no effect
};

struct Cluster {
  int hosts = 1;
  int ranks_per_host = 1;
  ClusterLink network;                                                               // a host's card, in each direction
  ClusterLink local{.bytes_per_s = 100e9, .latency_s = 1e-6, .overhead_s = 0.2e-6};  // inside a host
  bool local_ports = false;     // each rank has its own local link; else all ranks of a host share one
  int hosts_per_rack = 0;       // 0: all hosts are on one switch that is never the limit
  double oversubscription = 1;  // the cards of a rack together have this many times the bandwidth of its uplink
  double reduce_bytes_per_s = 10e9;
  double copy_bytes_per_s = 10e9;
  double noise = 0;    // each latency and each piece of work takes longer by this factor on average
  int stragglers = 0;  // so many ranks, chosen by the seed, begin late
  double straggler_delay_s = 0;
  uint64_t seed = 1;

  int ranks() const { return hosts * ranks_per_host; }
  int host_of(int rank) const { return rank / ranks_per_host; }
  int racks() const { return hosts_per_rack == 0 ? 1 : (hosts + hosts_per_rack - 1) / hosts_per_rack; }
  int rack_of_host(int host) const { return hosts_per_rack == 0 ? 0 : host / hosts_per_rack; }
  bool is_local(int from, int to) const { return host_of(from) == host_of(to); }
  const ClusterLink& link(int from, int to) const { return is_local(from, to) ? local : network; }
  // Whether all ranks begin together and nothing is random, so that equal ranks take equal times.
  bool is_regular() const { return noise == 0 && (stragglers == 0 || straggler_delay_s == 0); }
};

// Names the first value that no cluster can have.
Status check(const Cluster& cluster);

// The shared resources that a message occupies, as numbers below link_count().
struct LinkPath {
  std::array<int32_t, 4> links{};
  int count = 0;
  void add(int32_t link) { links[static_cast<std::size_t>(count++)] = link; }
};

// Numbers the resources: for each host its card in both directions and its local links, for each rack its uplink in
// both directions.
class ClusterLinks {
 public:
  explicit ClusterLinks(const Cluster& cluster) : cluster_(&cluster) {}

  int32_t count() const { return rack_base() + 2 * cluster_->racks(); }
  double bytes_per_s(int32_t link) const;
  // `from_host`, `to_host` and the ports are those of the simulated ranks; `from` and `to` are the ranks themselves,
  // which decide whether the message leaves the host and the rack.
  LinkPath path(int from, int to, int simulated_from, int simulated_to) const;

 private:
  int32_t local_base() const { return 2 * cluster_->hosts; }
  int32_t rack_base() const { return local_base() + (cluster_->local_ports ? 2 * cluster_->ranks() : cluster_->hosts); }

  const Cluster* cluster_;
};

}  // namespace fdl
