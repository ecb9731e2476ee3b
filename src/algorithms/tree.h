// BinomialTree is the binomial tree over nodes, which are ranks counted from the root.
//
//   8 ranks:   0 has children 1 2 4, 2 has 3, 4 has 5 6, 6 has 7; a node of lowest set bit b spans b ranks
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

namespace fdl {

struct BinomialTree {
  BinomialTree(int rank, int size_, int root_) : size(size_), root(root_), self((rank - root_ + size_) % size_) {}

  bool is_root() const { return self == 0; }
  int parent() const { return rank_of(self & (self - 1)); }
  // Distances from this node to its children, smallest subtree first.
  std::vector<int> children() const {
    std::vector<int> distances;
    for (int bit = 1; (self & bit) == 0 && self + bit < size; bit *= 2) distances.push_back(bit);
    return distances;
  }
  int child(int distance) const { return rank_of(self + distance); }
  int child_span(int distance) const { return std::min(distance, size - self - distance); }
  // Number of ranks in the subtree of this node, itself included. They are the nodes that follow it.
  int span() const { return span_of(self); }
  int span_of(int node) const { return node == 0 ? size : std::min(node & -node, size - node); }
  int rank_of(int node) const { return (node + root) % size; }

  int size;
  int root;
  int self;  // counted from the root
};

}  // namespace fdl
