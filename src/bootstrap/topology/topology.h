// Topology: which ranks can really map the same memory, which host each is on, and what cores this process may use.
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
HostFacts host_facts();  // without the node, which takes longer
// The NUMA node, by the system's number, that has all cores which this process may use; -1: there is no such node, or
// there are no two (hwloc; HWLOC_SYNTHETIC and its like are obeyed).
int numa_node();

// The NUMA nodes of this machine, as hwloc sees it; at least one where it sees any.
struct NumaNode {
  int number = 0;  // the system's
  int cores = 0;
};
std::vector<NumaNode> numa_nodes();

// How many cores this process may use: affinity and cgroup quota (rounded down, at least 1).
int usable_cores();
// The cgroup's quota in cores, as it is (0.5); 0: none.
double cpu_quota();
// How many cores these processes of this host may use between them: a launcher may have bound each to one of its own.
// Processes that cannot be seen do not count.
int usable_cores(std::span<const int> processes);
// Whether each of these members that is on that host can have a core of its own: only then does spinning help, and is
// a message read as soon as it is there.
bool each_has_a_core(std::span<const Member> members, std::string_view host_id);
// One sentence from hwloc: "2 cores, 1 NUMA node, 32 MiB last-level cache".
std::string describe_machine();

// Which ranks of the world share memory: ranks of one boot id try it (a Unix socket, a passed memfd, a mapped word),
// and the members' host_id says who succeeded with whom. A trial that fails (another container) makes other hosts and
// is no error; a rank that never says anything is, when the deadline passes. Collective over the world, and so is
// `exchange`.
Result<std::vector<Member>> find_hosts(int rank, const std::vector<HostFacts>& facts, const std::string& job_key,
                                       Exchange& exchange, Deadline deadline);

}  // namespace fdl
