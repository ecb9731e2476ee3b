// answer_of_levels() runs the plans for a hypothetical collective and describes their decision in words.
#include "transports/shm/numa/shm_level_answer.h"

#include <fmt/format.h>

#include <algorithm>

#include "transports/shm/collectives/shm_plan.h"
#include "transports/shm/numa/shm_level_plan.h"
#include "transports/shm/numa/shm_nodes.h"
#include "transports/shm/shm_layout.h"

namespace fdl {
namespace {

// "rank 0" or "ranks 0-3"
std::string ranks_text(const ShmNodes& nodes, int node) {
  return (nodes.ranks_on(node) == 1 ? "rank " : "ranks ") + nodes.ranks_text(node);
}

// The reason why the plan stays flat: the first of its conditions that does not hold.
std::string why_flat(std::span<const int> node_of_rank, const ShmNodes& nodes, const ShmPlan& flat, bool is_enabled) {
  const auto unbound = std::ranges::find_if(node_of_rank, [](int node) { return node < 0; });
  if (!is_enabled) return "FARANDOLE_NUMA_LEVELS is 0";
  if (unbound != node_of_rank.end()) {
    return fmt::format("rank {} is bound to no single node; bind each rank to one, and neighbours to the same",
                       unbound - node_of_rank.begin());
  }
  if (nodes.count() == 1) return "all ranks are on one NUMA node";
  if (!nodes.are_levels()) return "each node has one rank, so nothing would cross less often";
  const bool moves = flat.collective() == Collective::broadcast || flat.collective() == Collective::allgather;
  if (flat.collective() == Collective::barrier) return "a barrier moves no bytes";
  if (!flat.folds() && !moves) return "each of its bytes crosses between nodes once as it is";
  if (flat.folds() && !nodes.in_rank_order()) {
    return "sums are folded in rank order, and the ranks of a node are not neighbours; bind 0 to k to the first node";
  }
  if (flat.small() || flat.total_bytes() < ShmLevelPlan::kLeastBytes) {
    return fmt::format("below {} KiB one round takes less time than going from node to node",
                       ShmLevelPlan::kLeastBytes / 1_KiB);
  }
  return "a step of so many ranks does not fit into shared memory; raise FARANDOLE_SHM_BYTES";
}

// Describes a sum from node to node.
std::vector<std::string> stages_of_fold(const ShmNodes& nodes, const ShmLevelPlan& plan, Collective collective) {
  std::vector<std::string> stages;
  for (int node = 0; node < nodes.count(); ++node) {
    stages.push_back(fmt::format("node {}: {} fold their inputs{}, a share each", node, ranks_text(nodes, node),
                                 node == 0 ? "" : fmt::format(" upon the sum of node {}", node - 1)));
  }
  if (collective == Collective::allreduce) {
    for (int node = nodes.count() - 2; node >= 0; --node) {
      stages.push_back(fmt::format("node {}: {} fetch the result from node {}, a share each", node,
                                   ranks_text(nodes, node), node + 1));
    }
    stages.push_back("every rank reads the result from its own node");
  } else {
    const char* readers = collective == Collective::reduce ? "the root reads the result" : "every rank reads its part";
    stages.push_back(fmt::format("{} from node {}", readers, nodes.count() - 1));
  }
  stages.push_back(fmt::format("in {} steps that overlap", plan.steps()));
  return stages;
}

// Describes a broadcast or allgather over the nodes.
std::vector<std::string> stages_of_move(const ShmNodes& nodes, const ShmLevelPlan& plan, int root,
                                        Collective collective) {
  std::vector<std::string> stages;
  for (int node = 0; node < nodes.count(); ++node) {
    const bool has_root = collective == Collective::broadcast && nodes.node_of(root) == node;
    const std::string ranks = ranks_text(nodes, node);
    if (has_root) {
      stages.push_back(fmt::format("node {}: {} read what rank {} has", node, ranks, root));
    } else {
      stages.push_back(fmt::format(
          "node {}: {} fetch what {} has, a share each, and read the shares of their node", node, ranks,
          collective == Collective::broadcast ? fmt::format("node {}", nodes.node_of(root)) : "every other node"));
    }
  }
  stages.push_back(fmt::format("in {} steps that overlap", plan.steps()));
  return stages;
}

}  // namespace

// The plans are made for rank 0; whether they go over nodes is the same for all ranks.
LevelAnswer answer_of_levels(std::span<const int> node_of_rank, const CollectiveSpec& spec, bool is_enabled,
                             std::size_t shm_bytes) {
  const int ranks = static_cast<int>(node_of_rank.size());
  LevelAnswer answer;
  if (ranks > kMaxShmRanks) {
    answer.why = fmt::format("shared memory joins {} ranks of a host at most", kMaxShmRanks);
    return answer;
  }
  const ShmNodes nodes(node_of_rank);
  for (int node = 0; node < nodes.count(); ++node) answer.nodes.push_back(nodes.ranks_text(node));
  // The same slice as at run time.
  const std::size_t slice = std::min(ShmLayout::slice_for(ranks, shm_bytes), kMostSliceBytes);
  ShmPlan flat;
  flat.assign(spec, 0, ranks, slice);
  ShmLevelPlan plan(nodes, 0, ranks);
  answer.used = is_enabled && plan.assign(spec, flat, slice);
  if (!answer.used) {
    answer.why = why_flat(node_of_rank, nodes, flat, is_enabled);
    return answer;
  }
  answer.why = "bytes cross between nodes once a node, not once a rank; no rank leads, each carries a share";
  answer.stages = plan.folds() ? stages_of_fold(nodes, plan, spec.collective)
                               : stages_of_move(nodes, plan, spec.root, spec.collective);
  return answer;
}

}  // namespace fdl
