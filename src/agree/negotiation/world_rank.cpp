// The names agree with those of Member, which this module does not know.
#include "agree/negotiation/world_rank.h"

#include <fmt/core.h>

namespace fdl {

WorldRank world_rank(int rank, const std::vector<WorldRank>& ranks) {
  const auto index = static_cast<std::size_t>(rank);
  return index < ranks.size() ? ranks[index] : WorldRank{.number = rank};
}

std::string rank_name(int rank, const std::vector<WorldRank>& ranks) {
  const WorldRank world = world_rank(rank, ranks);
  return world.host.empty() ? fmt::format("rank {}", world.number)
                            : fmt::format("rank {} ({})", world.number, world.host);
}

}  // namespace fdl
