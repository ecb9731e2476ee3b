// ShmNodes: which ranks of a host are on which NUMA node, and in which order a sum may go from node to node.
//
// Nodes are numbered by their lowest rank. Where the ranks of each node are neighbours, a fold in rank order is one
// over the nodes: node 0's ranks, then node 1's upon what came of them.
#pragma once

#include <array>
#include <span>
#include <string>

#include "transports/shm/shm_neighbours.h"

namespace fdl {

class ShmNodes {
 public:
  ShmNodes() = default;
  // By rank, the node that it is bound to; below 0: to none. Then nobody's node is of any use.
  explicit ShmNodes(std::span<const int> node_of_rank);

  // Two nodes or more, of which one has several ranks: else a rank reads as much from other nodes as its node.
  bool are_levels() const { return are_levels_; }
  // The ranks of each node are neighbours.
  bool in_rank_order() const { return in_rank_order_; }

  int count() const { return count_; }
  int fewest_ranks() const { return fewest_; }
  RankMask ranks_of(int node) const { return masks_[at(node)]; }
  int node_of(int rank) const { return node_of_[at(rank)]; }
  int ranks_on(int node) const { return __builtin_popcountll(ranks_of(node)); }
  // Its place among the ranks of its node.
  int place_of(int rank) const { return __builtin_popcountll(ranks_of(node_of(rank)) & (bit_of(rank) - 1)); }
  std::string ranks_text(int node) const;  // "0-3"
  // "2 NUMA nodes, ranks 0-3 and 4-7"
  std::string text() const;

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  bool are_levels_ = false;
  bool in_rank_order_ = true;
  int count_ = 0;
  int fewest_ = 0;
  std::array<RankMask, kMaxShmRanks> masks_{};
  std::array<int, kMaxShmRanks> node_of_{};
};

}  // namespace fdl
