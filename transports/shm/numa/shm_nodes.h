// ShmNodes holds which ranks of a host are on which NUMA node, and whether a sum can go from node to node in rank
// order.
//
// Nodes are numbered by their lowest rank. If the ranks of each node are consecutive, a fold in rank order is a fold
// over the nodes: the ranks of node 0, then those of node 1 onto that result, and so on.
#pragma once

#include <array>
#include <span>
#include <string>

#include "transports/shm/shm_neighbours.h"

namespace fdl {

class ShmNodes {
 public:
  ShmNodes() = default;
  // `node_of_rank` has the node to which each rank is bound; a negative number means none. If any rank is bound to
  // none, the object has no nodes.
  explicit ShmNodes(std::span<const int> node_of_rank);

  // Two nodes or more, at least one with several ranks. Otherwise each rank reads as much from other nodes as its whole
  // node does.
  bool are_levels() const { return are_levels_; }
  // The ranks of each node are consecutive.
  bool in_rank_order() const { return in_rank_order_; }

  int count() const { return count_; }
  int fewest_ranks() const { return fewest_; }
  RankMask ranks_of(int node) const { return masks_[at(node)]; }
  int node_of(int rank) const { return node_of_[at(rank)]; }
  int ranks_on(int node) const { return __builtin_popcountll(ranks_of(node)); }
  // The index of `rank` among the ranks of its node.
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
