// Cluster describes the machines of a simulation: hosts with equally many ranks, the links inside and between hosts,
// levels of switches with oversubscribed uplinks, the speed of memory, noise and stragglers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

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

// Groups of consecutive hosts that have one switch each, such as racks or zones. If the hosts of the cluster are not a
// multiple of `hosts`, the last group has fewer, and an uplink as the others.
//
// The uplink of a group has in each direction the bandwidth of the links below it together (the cards of a rack, the
// uplinks of a zone's racks), divided by `oversubscription`. A message between two groups of a level takes `latency_s`
// longer. It crosses all levels inside of that one as well, and the latencies of all levels that it crosses add up, as
// it passes the switches of each.
struct SwitchLevel {
  std::string name;
  int hosts = 1;
  double oversubscription = 1;
  double latency_s = 0;
};

struct Cluster {
  int hosts = 1;
  int ranks_per_host = 1;
  ClusterLink network;                                                               // a host's card, in each direction
  ClusterLink local{.bytes_per_s = 100e9, .latency_s = 1e-6, .overhead_s = 0.2e-6};  // inside a host
  bool local_ports = false;  // each rank has its own local link; else all ranks of a host share one
  // From the innermost level outwards; the hosts of each are a multiple of those of the level inside of it. All groups
  // of the last level are on one switch that is never the limit, and so are all hosts if there are no levels.
  std::vector<SwitchLevel> switches = {};
  double reduce_bytes_per_s = 10e9;
  double copy_bytes_per_s = 10e9;
  double noise = 0;    // each latency and each piece of work takes longer by this factor on average
  int stragglers = 0;  // so many ranks, chosen by the seed, begin late
  double straggler_delay_s = 0;
  uint64_t seed = 1;

  int ranks() const { return hosts * ranks_per_host; }
  int host_of(int rank) const { return rank / ranks_per_host; }
  int groups(const SwitchLevel& level) const { return (hosts + level.hosts - 1) / level.hosts; }
  bool has_equal_groups(const SwitchLevel& level) const { return hosts % level.hosts == 0; }
  bool is_local(int from, int to) const { return host_of(from) == host_of(to); }
  // How many levels a message crosses. They are the innermost ones, because groups are nested.
  std::size_t levels_crossed(int from, int to) const;
  const ClusterLink& link(int from, int to) const { return is_local(from, to) ? local : network; }
  // Of the link, and of the levels that the message crosses.
  double latency_s(int from, int to) const;
  // Whether all ranks begin together and nothing is random, so that equal ranks take equal times.
  bool is_regular() const { return noise == 0 && (stragglers == 0 || straggler_delay_s == 0); }
};

// Names the first value that no cluster can have.
Status check(const Cluster& cluster);

// The sizes of the levels of a cluster from the innermost outwards: ranks of a host, hosts of a group of the first
// level, groups of the first level in one of the second, and so on. Their product is the number of ranks. A level whose
// groups are not equally large is left out, and so is a size of 1.
std::vector<int> levels_of(const Cluster& cluster);
// By these levels: the latency of a message between two ranks whose innermost common group is of that level.
std::vector<double> level_latencies_s(const Cluster& cluster);

// The same hosts with one rank each: the group in which a hierarchical collective runs its part between hosts.
Cluster with_one_rank_a_host(Cluster cluster);

// Paths of messages: for each, the shared resources that it occupies.
class LinkPaths {
 public:
  std::size_t count() const { return ends_.size() - 1; }
  std::size_t total() const { return links_.size(); }  // links of all paths together
  // Where the links of a path begin among those of all paths.
  std::size_t begin(std::size_t path) const { return ends_[path]; }
  std::span<const int32_t> operator[](std::size_t path) const {
    return std::span(links_).subspan(ends_[path], ends_[path + 1] - ends_[path]);
  }
  void add(std::span<const int32_t> links) {
    links_.insert(links_.end(), links.begin(), links.end());
    ends_.push_back(links_.size());
  }

 private:
  std::vector<int32_t> links_;
  std::vector<std::size_t> ends_{0};  // of path i at i + 1
};

// Numbers the resources: for each host its card in both directions and its local links, for each group of each level
// its uplink in both directions.
class ClusterLinks {
 public:
  explicit ClusterLinks(const Cluster& cluster);

  int32_t count() const { return count_; }
  double bytes_per_s(int32_t link) const;
  // The links of a message, in the order in which it passes them. `from` and `to` are the ranks themselves, which
  // decide which groups the message leaves. The links are those of the simulated ranks that stand for them.
  std::vector<int32_t> path(int from, int to, int simulated_from, int simulated_to) const;

 private:
  struct Uplinks {
    int32_t first = 0;  // of the numbers of a level's uplinks
    int32_t hosts = 1;  // of a group
    double bytes_per_s = 0;
  };

  int32_t local_base() const { return 2 * cluster_->hosts; }

  const Cluster* cluster_;
  std::vector<Uplinks> levels_;
  int32_t count_ = 0;
};

// The bandwidth of the uplink of a group of each level, in each direction.
std::vector<double> uplink_bytes_per_s(const Cluster& cluster);

}  // namespace fdl
