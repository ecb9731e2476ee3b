// RankOrder orders the ranks of a group along the levels of the network: ranks of a host are neighbours, so are those
// of the hosts of a rack, of the racks of a zone, and so on.
//
//   rank        0     1     2     3     4     5           launched one on each host in turn, on 3 hosts in 2 racks
//   rack/host   a/x   b/z   a/y   a/x   b/z   a/y
//   order       0 3   2 5   1 4                           a group is where its lowest rank would be
#pragma once

#include <span>
#include <string>
#include <vector>

namespace fdl {

// Empty lists: the order is that of the ranks.
struct RankOrder {
  std::vector<int> rank_at{};      // by position
  std::vector<int> position_of{};  // by rank

  bool is_by_rank() const { return rank_at.empty(); }
  int rank(int position) const { return is_by_rank() ? position : rank_at[static_cast<std::size_t>(position)]; }
  int position(int rank) const { return is_by_rank() ? rank : position_of[static_cast<std::size_t>(rank)]; }
};

struct RankLevels {
  RankOrder order{};
  int hosts = 1;           // innermost groups
  int ranks_per_host = 1;  // 0 if these have different numbers of ranks
  // How many groups of the next inner level each group has, from the innermost level (ranks of a host) outwards. Their
  // product is the number of ranks. Levels whose groups have different numbers of ranks are left out, and so are those
  // that divide nothing. Empty if ranks_per_host is 0, or for one rank.
  std::vector<int> levels{};
};

// depths[d][r] is a number of the group at depth d that rank r is in, from the widest groups to the hosts. Numbers need
// to differ only within a group of the depth before. Each depth lists all ranks, of which there is at least one, and
// there is at least one depth.
RankLevels order_ranks(std::span<const std::vector<int>> depths);

// The groups of each rank at each depth of the network, for order_ranks(). `locations` are texts such as
// "zone-a/rack-3"; location_of[r] is the index of rank r's, or below 0. A location with fewer names than others is in a
// group without a name at the depths that it lacks, and so is a rank whose location is not known.
std::vector<std::vector<int>> groups_of_locations(std::span<const std::string> locations,
                                                  std::span<const int> location_of);

// The number of the innermost level whose groups hold both positions, counted from 0 (a host, if ranks_per_host is more
// than 1). They differ.
int level_between(std::span<const int> levels, int position, int other);

}  // namespace fdl
