// The network report draws the groups of hosts that a job would have, the order of its ranks in them, and what the
// levels do in a collective, for `farandole explain`.
#pragma once

#include <string>
#include <vector>

#include "algorithms/choice/group_shape.h"
#include "base/status.h"
#include "cli/json_line.h"

namespace fdl {

// Hosts with equally many ranks.
struct GivenNetwork {
  std::vector<std::string> hosts;      // their names
  std::vector<std::string> locations;  // of each: "zone-a/rack-3"
  int ranks_per_host = 1;
  bool is_in_turn = false;  // ranks are numbered one on each host in turn, instead of host by host

  int ranks() const { return static_cast<int>(hosts.size()) * ranks_per_host; }
  int host_of(int rank) const { return is_in_turn ? rank % static_cast<int>(hosts.size()) : rank / ranks_per_host; }
};

// "8,32,4": 8 ranks a host, 32 hosts in each group, 4 groups. At most `most` ranks.
Result<GivenNetwork> network_of_levels(const std::string& text, int most);
// The hosts that a topology file lists, in its order.
Result<GivenNetwork> network_of_file(const std::string& path, int ranks_per_host);

RankLevels levels_of(const GivenNetwork& network);

// One line for each group and host, wider groups first, with their ranks. Long lists are shortened.
std::string drawing_of(const GivenNetwork& network, const RankLevels& levels);
// "levels: 8 ranks a host, 32 hosts a group, 4 groups\norder: that of the ranks\n"
std::string levels_text(const RankLevels& levels);
// What each level does if the algorithm is multi_level; else empty. `bytes`: the vector, or all parts together.
std::string stages_text(const Algorithm& algorithm, const GroupShape& shape, int64_t bytes);

void add_to(JsonLine& line, const GroupShape& shape);

}  // namespace fdl
