// The binomial tree moves sums up and results down a tree of log2(p) levels; slices stream through it.
//
//   4 ranks      up    round 0   1 to 0, 3 to 2
//                      round 1   2 to 0
//                down  round 2   0 to 2
//                      round 3   0 to 1, 2 to 3
//
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
// IJHPCA 19 (2005).
#include "algorithms/algorithms.h"
#include "algorithms/tree.h"
#include "schedule/builder.h"

namespace fdl {
namespace {

// Reduces the whole vector up to rank 0 and sends it down again; a barrier does the same with no bytes.
Schedule up_and_down(const ScheduleRequest& request, Collective collective) {
  const BinomialTree tree(request.rank, request.size, 0);
  Builder step("binomial_tree", collective, request.rank, request.size, 1);
  const std::vector<int> children = tree.children();
  const bool leaf = children.empty() && !tree.is_root();
  if (!leaf) step.copy(output(0), input(0));
  for (const int distance : children) step.recv_reduce(tree.child(distance), output(0));
  if (!tree.is_root()) step.send(tree.parent(), leaf ? input(0) : output(0)).recv(tree.parent(), output(0));
  for (auto distance = children.rbegin(); distance != children.rend(); ++distance) {
    step.send(tree.child(*distance), output(0));
  }
  return step.take();
}

// Returns the chunks of consecutive nodes. Nodes are counted from the root, so the ranks may wrap around at chunk 0 and
// form two ranges.
std::vector<ChunkRange> around(Space space, int first, int count, int size) {
  const int before_end = std::min(count, size - first);
  std::vector<ChunkRange> ranges{{space, first, before_end}};
  if (count > before_end) ranges.push_back({space, 0, count - before_end});
  return ranges;
}

// Returns the scratch ranges of a child of the root, split where the root's ranges are split, since the k-th message
// must have the same length on both sides.
std::vector<ChunkRange> cut_like_root(const BinomialTree& tree, int rank) {
  std::vector<ChunkRange> ranges;
  int done = 0;
  for (const ChunkRange& range : around(Space::output, rank, tree.span(), tree.size)) {
    ranges.push_back(scratch(done, range.count));
    done += range.count;
  }
  return ranges;
}

void add_subtree_scratch(Builder& step, const BinomialTree& tree) {
  for (int i = 0; i < tree.span(); ++i) step.new_scratch(tree.rank_of(tree.self + i));
}

}  // namespace

Schedule binomial_tree_allreduce(const ScheduleRequest& request) { return up_and_down(request, Collective::allreduce); }

Schedule binomial_tree_barrier(const ScheduleRequest& request) { return up_and_down(request, Collective::barrier); }

Schedule binomial_tree_reduce(const ScheduleRequest& request) {
  const BinomialTree tree(request.rank, request.size, request.root);
  Builder step("binomial_tree", Collective::reduce, request.rank, request.size, 1, request.root);
  const std::vector<int> children = tree.children();
  if (children.empty() && !tree.is_root()) return step.send(tree.parent(), input(0)).take();
  const ChunkRange sum = tree.is_root() ? output(0) : step.new_scratch(0);
  step.copy(sum, input(0));
  for (const int distance : children) step.recv_reduce(tree.child(distance), sum);
  if (!tree.is_root()) step.send(tree.parent(), sum);
  return step.take();
}

Schedule binomial_tree_broadcast(const ScheduleRequest& request) {
  const BinomialTree tree(request.rank, request.size, request.root);
  Builder step("binomial_tree", Collective::broadcast, request.rank, request.size, 1, request.root);
  if (!tree.is_root()) step.recv(tree.parent(), output(0));
  const std::vector<int> children = tree.children();
  for (auto distance = children.rbegin(); distance != children.rend(); ++distance) {
    step.send(tree.child(*distance), tree.is_root() ? input(0) : output(0));
  }
  if (tree.is_root()) step.copy(output(0), input(0));
  return step.take();
}

// A node gathers its subtree in scratch, in the order of nodes, and sends it to its parent in one message.
Schedule binomial_tree_gather(const ScheduleRequest& request) {
  const BinomialTree tree(request.rank, request.size, request.root);
  Builder step("binomial_tree", Collective::gather, request.rank, request.size, request.size, request.root);
  step.pipelining(Pipelining::rounds);
  if (tree.is_root()) {
    step.copy(output(request.rank), input(0));
    for (const int distance : tree.children()) {
      const int child = tree.child(distance);
      for (const ChunkRange& range : around(Space::output, child, tree.child_span(distance), tree.size)) {
        step.recv(child, range);
      }
    }
    return step.take();
  }
  if (tree.span() == 1) return step.send(tree.parent(), input(0)).take();
  add_subtree_scratch(step, tree);
  step.copy(scratch(0), input(0));
  for (const int distance : tree.children()) {
    step.recv(tree.child(distance), scratch(distance, tree.child_span(distance)));
  }
  if (tree.parent() != request.root) return step.send(tree.parent(), scratch(0, tree.span())).take();
  for (const ChunkRange& range : cut_like_root(tree, request.rank)) step.send(request.root, range);
  return step.take();
}

Schedule binomial_tree_scatter(const ScheduleRequest& request) {
  const BinomialTree tree(request.rank, request.size, request.root);
  Builder step("binomial_tree", Collective::scatter, request.rank, request.size, request.size, request.root);
  step.pipelining(Pipelining::rounds);
  const std::vector<int> children = tree.children();
  if (tree.is_root()) {
    for (auto distance = children.rbegin(); distance != children.rend(); ++distance) {
      const int child = tree.child(*distance);
      for (const ChunkRange& range : around(Space::input, child, tree.child_span(*distance), tree.size)) {
        step.send(child, range);
      }
    }
    return step.copy(output(0), input(request.rank)).take();
  }
  if (tree.span() == 1) return step.recv(tree.parent(), output(0)).take();
  add_subtree_scratch(step, tree);
  if (tree.parent() != request.root) {
    step.recv(tree.parent(), scratch(0, tree.span()));
  } else {
    for (const ChunkRange& range : cut_like_root(tree, request.rank)) step.recv(request.root, range);
  }
  for (auto distance = children.rbegin(); distance != children.rend(); ++distance) {
    step.send(tree.child(*distance), scratch(*distance, tree.child_span(*distance)));
  }
  return step.copy(output(0), scratch(0)).take();
}

}  // namespace fdl
