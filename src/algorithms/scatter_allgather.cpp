// Scatter and allgather: the root scatters the vector down a binomial tree, then a ring gathers it on all ranks.
//
//   4 ranks, root 0      scatter     round 0   chunks 2-3 to rank 2
//                                    round 1   0 sends chunk 1 to rank 1, 2 sends chunk 3 to rank 3
//                        allgather   a ring that skips chunks which the receiver already has
//
// Chunks are numbered by ranks counted from the root.
// Source: R. van de Geijn; M. Barnett et al., "Interprocessor collective communication library", SHPCC 1994.
#include "algorithms/algorithms.h"
#include "algorithms/tree.h"
#include "schedule/builder.h"

namespace fdl {

Schedule scatter_allgather_broadcast(const ScheduleRequest& request) {
  const BinomialTree tree(request.rank, request.size, request.root);
  const int size = request.size;
  Builder step("scatter_allgather", Collective::broadcast, request.rank, size, size, request.root);
  const Space held = tree.is_root() ? Space::input : Space::output;
  if (!tree.is_root()) step.recv(tree.parent(), output(tree.self, tree.span()));
  const std::vector<int> children = tree.children();
  for (auto distance = children.rbegin(); distance != children.rend(); ++distance) {
    step.send(tree.child(*distance), {held, tree.self + *distance, tree.child_span(*distance)});
  }
  const auto has = [&](int node, int chunk) { return chunk >= node && chunk < node + tree.span_of(node); };
  const int next = (tree.self + 1) % size;
  for (int i = 0; i < size - 1; ++i) {
    const int sent = (tree.self - i + size) % size;
    const int received = (tree.self - i - 1 + size) % size;
    if (!has(next, sent)) step.send(tree.rank_of(next), {held, sent, 1});
    if (!has(tree.self, received)) step.recv(tree.rank_of(tree.self + size - 1), output(received));
  }
  if (tree.is_root()) step.copy(output(0, size), input(0, size));
  return step.take();
}

}  // namespace fdl
