// The double binary tree uses two trees, each for half of the vector. A rank that is a leaf in one tree is an inner
// node of the other.
//
//   4 ranks: in-order trees, even positions are leaves; the second tree is the first one mirrored
//
//       first tree: 3        second tree: 0
//                  /                       \        chunk 0 goes up and down the first tree,
//                 1                         2       chunk 1 the second: both directions of every
//                / \                       / \      link are busy, and slices stream
//               0   2                     1   3
//
// With an odd number of ranks the second tree is the first one shifted by one rank.
// Source: P. Sanders, J. Speck, J. L. Traff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
// Parallel Computing 35 (2009).
#include <bit>
#include <vector>

#include "algorithms/algorithms.h"
#include "schedule/builder.h"

namespace fdl {
namespace {

struct Node {
  int parent = -1;
  std::vector<int> children;
};

// Returns the root of the in-order tree over `count` positions from `first`. Its left subtree is a perfect tree.
int top_of(int first, int count) { return first + static_cast<int>(std::bit_floor(static_cast<unsigned>(count))) - 1; }

// Walks down the in-order tree over positions 0..size-1 to `position`.
Node find_node(int position, int size) {
  int first = 0;
  int count = size;
  Node node;
  for (;;) {
    const int top = top_of(first, count);
    const int left = top - first;
    const int right = count - left - 1;
    if (position == top) {
      if (left > 0) node.children.push_back(top_of(first, left));
      if (right > 0) node.children.push_back(top_of(top + 1, right));
      return node;
    }
    node.parent = top;
    if (position > top) first = top + 1;
    count = position < top ? left : right;
  }
}

// The rank's neighbours in the first (0) or second (1) tree.
Node node_of(int rank, int size, int tree) {
  const bool mirrored = size % 2 == 0;
  const auto position_of = [&](int r) { return tree == 0 ? r : mirrored ? size - 1 - r : (r + 1) % size; };
  const auto rank_at = [&](int p) { return tree == 0 ? p : mirrored ? size - 1 - p : (p + size - 1) % size; };
  Node node = find_node(position_of(rank), size);
  if (node.parent >= 0) node.parent = rank_at(node.parent);
  for (int& child : node.children) child = rank_at(child);
  return node;
}

}  // namespace

// All ranks write the four passes in the same order. Two trees may share a lane, where messages are matched in order.
Schedule double_binary_tree_allreduce(const ScheduleRequest& request) {
  Builder step("double_binary_tree", Collective::allreduce, request.rank, request.size, 2);
  const Node nodes[2] = {node_of(request.rank, request.size, 0), node_of(request.rank, request.size, 1)};
  for (int tree = 0; tree < 2; ++tree) {
    const Node& node = nodes[tree];
    const bool leaf = node.children.empty() && node.parent >= 0;
    if (!leaf) step.copy(output(tree), input(tree));
    for (const int child : node.children) step.recv_reduce(child, output(tree));
    if (node.parent >= 0) step.send(node.parent, leaf ? input(tree) : output(tree));
  }
  for (int tree = 0; tree < 2; ++tree) {
    const Node& node = nodes[tree];
    if (node.parent >= 0) step.recv(node.parent, output(tree));
    for (const int child : node.children) step.send(child, output(tree));
  }
  return step.take();
}

}  // namespace fdl
