// Node launchers number the nodes (pods) of a job, not its processes. This header has one row for each of them.
//
// A process may use a node's number as its rank only if there is one process per node. Otherwise `farandole run`,
// started once per pod, assigns the ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/launchers/platform.h"
#include "bootstrap/launchers/variables.h"

namespace fdl {

// The default port of the rendezvous of pods; manifests for training usually open it.
constexpr int kPodPort = 29500;

struct NodeFacts {
  std::string source;        // the row's name
  std::string variable;      // the variable that numbers the node
  int node_rank = -1;        // -1: not given
  int node_count = -1;       // of an elastic job: the maximum
  int fewest_nodes = -1;     // of an elastic job: the minimum
  int processes = 0;         // on each node; 0: not given
  std::string process_text;  // instead of a number: "auto", "gpu", "cpu"
  std::string host;          // of node 0; empty: not given
  int port = 0;              // on that host, for the launcher's own purposes; 0: none
  std::string job;           // a fact that is equal on all nodes and differs between jobs; the key is derived from it
  std::string name_prefix;   // the pod of node 3 is called <prefix>3; empty: not known

  bool is_one_process_a_node() const { return processes == 1 || (processes == 0 && process_text.empty()); }
  // "node 1/4 of 8 processes source=pet"
  std::string line() const;
};

struct NodeRow {
  const char* name;
  const char* rank;  // the variable that identifies this launcher
  const char* count;
  // Returns nothing if this launcher's variables are absent; an error if they are incomplete or contradictory.
  Result<std::optional<NodeFacts>> (*read)(const Variables&, const Platform&);
  const char* sentence;
};

// In order of precedence.
const std::vector<NodeRow>& node_rows();

// Returns the result of the first row whose variables are set. A broken row below it is no error.
Result<std::optional<NodeFacts>> find_node(const Variables& variables, const Platform& platform);

// Returns the name of another node's pod, derived from this pod's own name; empty if that is not possible.
std::string pod_name(const NodeFacts& node, int index);

// Returns the facts that are equal on all nodes of this job.
std::string facts_of(const NodeFacts& node);

// Returns a rendezvous at node 0: at `port_base` if it is set, else next to the launcher's own port, else at kPodPort.
Result<std::string> place_of_node_zero(const NodeFacts& node, int port_base);

}  // namespace fdl
