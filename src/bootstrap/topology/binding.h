// bind_ranks() distributes the processors of this host over the ranks that a launcher starts here. Ranks that are bound
// to different cores never wait for each other's time slice, and memory that a rank touches first is on its NUMA node.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/topology/topology.h"

namespace fdl {

enum class BindTo { automatic, core, numa, none };
// "auto", "core", "numa", "none"
std::optional<BindTo> bind_to_from(std::string_view word);

struct Binding {
  std::vector<std::vector<int>> processors;  // by local rank, the system's numbers; empty: ranks are not bound
  std::string text;                          // "each rank to 4 cores", or "ranks are not bound: " and the reason
};

// core: each rank gets as many whole cores as the others, neighbours in the machine. numa: each rank gets all cores of
// one NUMA node, ranks in blocks. Only processors that the calling process may use are given, so that a binding from
// outside stays in force. automatic: like core; or nothing where there is one rank, where ranks outnumber cores, or
// where something else has decided already: an affinity that leaves out processors of the machine, or a quota, which
// counts time and not cores. An error if what was asked for by name is impossible.
Result<Binding> bind_ranks(BindTo to, int ranks, const UsableProcessors& processors);
// Which ranks automatic binding binds here, for reports.
std::string describe_binding(const UsableProcessors& processors);

}  // namespace fdl
