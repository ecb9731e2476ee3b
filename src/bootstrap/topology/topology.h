// This header finds which ranks can map the same memory and which cores and NUMA nodes this process may use.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contract/membership.h"

namespace fdl {

struct HostFacts {
  std::string host_name;
  std::string boot_id;  // differs between machines and between boots
  int process_id = 0;
  int numa_node = -1;  // to which it is bound
};
HostFacts host_facts();  // without numa_node, which takes longer
// A text that is equal on processes of one user, kernel and network namespace: they can meet in an abstract socket.
std::string host_identity();
// Returns the system's number of the NUMA node that has all cores which this process may use. Returns -1 if there is no
// such node or the machine has fewer than two. It uses hwloc, so HWLOC_SYNTHETIC and similar variables have effect.
int numa_node();

// Returns the NUMA nodes of this machine according to hwloc; empty if hwloc cannot read the machine.
struct NumaNode {
  int number = 0;  // of the system
  int cores = 0;
};
std::vector<NumaNode> numa_nodes();

// The processors that this process may use. A processor is a hardware thread, with the system's number.
struct UsableProcessors {
  // Grouped, in the order of the machine. Without hwloc each processor counts as a core, and all are on one node.
  std::vector<std::vector<int>> by_core;
  std::vector<std::vector<int>> by_node;
  bool is_restricted = false;  // the affinity leaves out processors of the machine
  double quota = 0;            // of cpu_quota()
};
UsableProcessors usable_processors();

// Returns how many cores this process may use, by affinity and cgroup quota (rounded down, at least 1).
int usable_cores();
// Returns the cgroup's quota in cores, not rounded (0.5); 0 if there is none.
double cpu_quota();
// Returns how many cores the affinities of these processes of this host have together (0: the calling thread), since a
// launcher may have bound each to its own. Processes whose affinity cannot be read are ignored.
int cores_in_affinity(std::span<const int> processes);
// Returns whether each of these members on that host can have a core of its own. Only then does spinning help. A quota
// takes no core away: with 0.5 to 1.5 cores for two ranks, small operations are 3 to 10 times faster if they spin, in
// the mean too.
bool each_has_a_core(std::span<const Member> members, std::string_view host_id);
// Returns a description from hwloc: "2 cores, 1 NUMA node, 32 MiB last-level cache".
std::string describe_machine();

// Finds which ranks of the world share memory. Ranks with equal boot id try it: a Unix socket, a passed memfd, a mapped
// word. Ranks that succeed with each other get equal host_id, and at most kRanksPerMemoryGroup of them get equal
// memory_group. A failed trial (another container) results in separate hosts and is no error; a rank that does not
// answer by the deadline is. All ranks of the world must call this function; `exchange` covers the world too.
Result<std::vector<Member>> find_hosts(int rank, const std::vector<HostFacts>& facts, const std::string& job_key,
                                       Exchange& exchange, Deadline deadline);

}  // namespace fdl
