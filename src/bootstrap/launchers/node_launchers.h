// Node launchers: which node (pod) of a job this is, where a launcher says that and not which process; one row each.
//
// A process may take a node's number for its rank only where there is one process a node; else `farandole run`, started
// once a pod, makes ranks of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/launchers/platform.h"
#include "bootstrap/launchers/variables.h"

namespace fdl {

// Where the ranks of pods meet when nothing is said: what manifests for training open by custom.
constexpr int kPodPort = 29500;

struct NodeFacts {
  std::string source;        // the row's name
  std::string variable;      // which variable numbers the node
  int node_rank = -1;        // -1: not told
  int node_count = -1;       // of an elastic job the most there may be
  int fewest_nodes = -1;     // of an elastic job
  int processes = 0;         // on each node; 0: not told
  std::string process_word;  // instead of a number: "auto", "gpu", "cpu"
  std::string host;          // of node 0; empty: not told
  int port = 0;              // that the launcher means for its own purposes, on that host; 0: none
  std::string job;           // what all nodes see alike and other jobs do not: the key is derived from it
  std::string name_prefix;   // node 3's pod is called <prefix>3; empty: not known

  bool is_one_process_a_node() const { return processes == 1 || (processes == 0 && process_word.empty()); }
  // "node 1/4 of 8 processes source=pet"
  std::string line() const;
};

struct NodeRow {
  const char* name;
  const char* rank;  // the variable that tells the row is meant
  const char* count;
  // Nothing where this launcher says nothing; an error where it says half, or contradicts itself.
  Result<std::optional<NodeFacts>> (*read)(const Variables&, const Platform&);
  const char* sentence;
};

// In order of precedence.
const std::vector<NodeRow>& node_rows();

// The first row that says something. A broken row below it is no error.
Result<std::optional<NodeFacts>> find_node(const Variables& variables, const Platform& platform);

// The name of another node's pod, as far as this one's own tells; else empty.
std::string pod_name(const NodeFacts& node, int index);

// What all nodes of this job see alike.
std::string facts_of(const NodeFacts& node);

// A rendezvous at node 0: at `port_base` where one is given; else beside the launcher's own port; else at 29500.
Result<std::string> place_of_node_zero(const NodeFacts& node, int port_base);

}  // namespace fdl
