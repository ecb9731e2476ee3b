// WorldRank is what texts call a rank of a group: its rank in the world, and its host.
#pragma once

#include <string>
#include <vector>

namespace fdl {

struct WorldRank {
  int number = 0;
  std::string host = {};  // may be empty
};

// The entry of a rank of the group. A rank that `ranks` does not have has the same number in the world.
WorldRank world_rank(int rank, const std::vector<WorldRank>& ranks);

// "rank 3 (host-b)", or "rank 3" without a host.
std::string rank_name(int rank, const std::vector<WorldRank>& ranks);

}  // namespace fdl
