// Rows that follow the order get positions for ranks, and their schedules get the ranks back.
#include "algorithms/choice/group_shape.h"

#include <algorithm>

#include "schedule/renumber.h"

namespace fdl {

Schedule write_schedule(const Algorithm& algorithm, const GroupShape& shape, int rank, int root) {
  ScheduleRequest request{.collective = algorithm.collective,
                          .rank = rank,
                          .size = shape.ranks,
                          .root = root,
                          .ranks_per_host = std::max(shape.ranks_per_host, 1),
                          .levels = shape.levels};
  if (shape.order.is_by_rank()) return algorithm.write(request);
  if (!algorithm.follows_order) {
    // Neighbours in the numbers of ranks are on unlike hosts.
    request.ranks_per_host = 1;
    request.levels.clear();
    return algorithm.write(request);
  }
  request.rank = shape.order.position(rank);
  request.root = shape.order.position(root);
  return renumbered(algorithm.write(request), shape.order.rank_at);
}

GroupShape shape_between_hosts(const GroupShape& shape) {
  GroupShape between = shape;
  between.ranks = shape.hosts;
  between.ranks_per_host = 1;
  between.parts = std::max(shape.ranks_per_host, 1);
  between.order = {};
  if (shape.ranks_per_host > 1 && !between.levels.empty()) {
    between.levels.erase(between.levels.begin());
    if (!between.level_latency_s.empty()) between.level_latency_s.erase(between.level_latency_s.begin());
  }
  return between;
}

GroupShape shape_between_blocks(const GroupShape& shape) {
  GroupShape between = shape_between_hosts(shape);
  if (!shape.order.is_by_rank()) {
    between.levels.clear();
    between.level_latency_s.clear();
  }
  return between;
}

GroupShape shape_inside_host(const GroupShape& shape) {
  GroupShape inside = shape;
  inside.ranks = shape.ranks_per_host;
  inside.hosts = 1;
  inside.order = {};
  inside.levels.clear();
  inside.level_latency_s.clear();
  return inside;
}

bool has_hosts_in_blocks(const GroupShape& shape) {
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const int first = rank - rank % shape.ranks_per_host;
    if (shape.order.position(rank) / shape.ranks_per_host != shape.order.position(first) / shape.ranks_per_host) {
      return false;
    }
  }
  return true;
}

}  // namespace fdl
