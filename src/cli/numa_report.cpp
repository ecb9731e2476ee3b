// Places ranks on NUMA nodes and reports the levels that the library would use for that placement.
#include "cli/numa_report.h"

#include <fmt/format.h>

#include <charconv>

#include "base/split_list.h"
#include "bootstrap/topology/topology.h"

namespace fdl {
namespace {

// Distributes ranks over nodes in contiguous blocks, as a launcher that binds ranks by core does.
std::vector<int> in_blocks(int ranks, int nodes) {
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < ranks; ++rank) node_of_rank.push_back(static_cast<int>(int64_t{rank} * nodes / ranks));
  return node_of_rank;
}

// Parses "0,0,1,-"; "-" becomes -1, a rank that is bound to no node.
Result<std::vector<int>> nodes_from(const std::string& text, int ranks) {
  std::vector<int> node_of_rank;
  for (const std::string& word : split_list(text)) {
    int node = -1;
    const auto [last, error] = std::from_chars(word.data(), word.data() + word.size(), node);
    if (word != "-" && (error != std::errc() || last != word.data() + word.size() || node < 0)) {
      return Status(Code::invalid_argument, "--nodes: '" + word + "' is not a NUMA node; try 0,0,1,1, or - for none");
    }
    node_of_rank.push_back(node);
  }
  if (static_cast<int>(node_of_rank.size()) == ranks) return node_of_rank;
  return Status(Code::invalid_argument, fmt::format("--nodes names {} ranks, but a host has {}; one number for each",
                                                    node_of_rank.size(), ranks));
}

std::string nodes_text(const std::vector<std::string>& nodes) {
  std::string text = fmt::format("{} node{}", nodes.size(), nodes.size() == 1 ? "" : "s");
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    text += fmt::format("{}{}", node == 0 ? ": ranks " : node + 1 < nodes.size() ? ", " : " and ", nodes[node]);
  }
  return text;
}

}  // namespace

Result<NumaReport> numa_report(const std::string& nodes_text, Collective collective, const GroupShape& shape,
                               int64_t bytes, bool is_whole, const Config& config) {
  NumaReport report;
  const int ranks = shape.hosts == 1 ? shape.ranks : shape.ranks_per_host;
  if (ranks < 1) {
    report.answer.why = "hosts hold different numbers of ranks";
    return report;
  }
  const bool shares = shape.transport.find("shm") != std::string::npos && ranks > 1;
  const int here = std::max(1, static_cast<int>(numa_nodes().size()));
  std::vector<int> node_of_rank = in_blocks(ranks, here);
  report.placed = here == 1 ? "this machine has one" : "this machine's, if ranks are bound to them in blocks";
  if (!nodes_text.empty()) {
    FDL_ASSIGN_OR_RETURN(node_of_rank, nodes_from(nodes_text, ranks));
    report.placed = "from --nodes";
  }
  if (shape.hosts > 1) report.placed += "; inside each host";
  // On several hosts an allreduce begins with a reduce-scatter inside each host, so that each rank carries one share
  // of the sum between hosts.
  const bool shared_out = shape.hosts > 1 && collective == Collective::allreduce;
  report.answer = levels_between(node_of_rank, shared_out ? Collective::reduce_scatter : collective,
                                 static_cast<std::size_t>(bytes), config);
  if (shares && is_whole) return report;
  report.answer.used = false;
  report.answer.why = shares ? "a schedule goes by hosts alone" : "the ranks share no memory";
  report.answer.stages.clear();
  return report;
}

std::string text_of(const NumaReport& report) {
  const LevelAnswer& answer = report.answer;
  if (answer.nodes.size() == 1) return fmt::format("NUMA: one node ({}), so there are no levels\n", report.placed);
  std::string text;
  if (!answer.nodes.empty()) text = fmt::format("NUMA: {} ({})\n", nodes_text(answer.nodes), report.placed);
  text += fmt::format("NUMA levels: {}: {}\n", answer.used ? "used" : "not used", answer.why);
  for (const std::string& stage : answer.stages) text += "  " + stage + "\n";
  return text;
}

void add_to(JsonLine& line, const NumaReport& report) {
  std::vector<JsonLine> nodes;
  for (std::size_t node = 0; node < report.answer.nodes.size(); ++node) {
    nodes.emplace_back().number("node", static_cast<long long>(node)).text("ranks", report.answer.nodes[node]);
  }
  line.list("numa_nodes", nodes).text("numa_placed", report.placed).flag("numa_levels", report.answer.used);
  line.text("numa_why", report.answer.why).list("numa_stages", report.answer.stages);
}

std::string numa_nodes_line() {
  const std::vector<NumaNode> nodes = numa_nodes();
  if (nodes.size() < 2) return "one, so collectives use no levels";
  std::string text;
  for (const NumaNode& node : nodes) {
    text +=
        fmt::format("{}{} ({} core{})", text.empty() ? "" : ", ", node.number, node.cores, node.cores == 1 ? "" : "s");
  }
  const int mine = numa_node();
  return text + (mine >= 0 ? fmt::format("; this process is bound to node {}", mine)
                           : "; this process is bound to none alone: ranks that are each bound to one (taskset, "
                             "numactl, a launcher's binding) let large collectives cross once a node");
}

}  // namespace fdl
