// MemberTable is the list of all members of a job in the form in which the coordinator sends it to each rank: what
// ranks of a host have in common is written once for the host.
//
// A job of p ranks has p copies of it, so its size for each rank counts: the recovery addresses of a host's ranks,
// which differ in their port, are one address and the ports.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/rank_range.h"
#include "base/status.h"
#include "bootstrap/coordinator/coordinator_client.h"

namespace fdl {

// Ranks of one host. Ranks that have been given other locations are another entry.
struct HostRanks {
  std::string host_name{};
  std::string boot_id{};
  std::vector<RankRange> ranges{};  // disjoint, in ascending order
};

// Calls `visit` with each rank and the name of its host.
template <typename Visit>
void for_each_rank(const std::vector<HostRanks>& hosts, const Visit& visit) {
  for (const HostRanks& host : hosts) {
    for (const RankRange& range : host.ranges) {
      for (int rank = range.first; rank < range.first + range.count; ++rank) visit(rank, host.host_name);
    }
  }
}

struct MemberTable {
  std::vector<HostRanks> hosts{};
  // One entry for each rank. An empty list stands for the default of Hello on all ranks.
  std::vector<int> process_ids{};
  std::vector<int> numa_nodes{};
  std::vector<int8_t> efa{};
  // The recovery addresses: of each host one without its port, and the port of each rank, which is 0 if it has none. If
  // ranks of a host differ in more, or an address has no port, `recovery` has whole addresses instead.
  std::vector<std::string> addresses{};
  std::vector<uint16_t> ports{};
  std::vector<std::string> recovery{};
  std::string salt{};  // of rank 0
  // The distinct locations, and of each host 1 + the index of its own; 0: not known.
  // Both lists are empty if no location is known.
  std::vector<std::string> locations{};
  std::vector<uint16_t> host_locations{};
};

// `members`: in the order of their ranks, without gaps.
MemberTable table_of(const std::vector<CoordinatorClient::Hello>& members);

// The members in the order of their ranks, without settings. An error if the table does not describe each of `size`
// ranks exactly once.
Result<std::vector<CoordinatorClient::Hello>> members_of(const MemberTable& table, int size);

}  // namespace fdl
