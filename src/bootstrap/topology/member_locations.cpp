// Member::host_id identifies a host: names may be equal.
#include "bootstrap/topology/member_locations.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "base/name_list.h"

namespace fdl {

std::shared_ptr<const std::vector<std::string>> assign_locations(std::vector<Member>& world,
                                                                 const std::vector<std::string>& of_rank) {
  std::map<std::string_view, std::string_view> of_host;
  auto all = std::make_shared<std::vector<std::string>>();
  for (std::size_t rank = 0; rank < world.size(); ++rank) {
    const auto [host, is_new] = of_host.try_emplace(world[rank].host_id, of_rank[rank]);
    if (is_new && !host->second.empty()) all->emplace_back(host->second);
  }
  if (all->empty()) return nullptr;
  std::ranges::sort(*all);
  all->erase(std::unique(all->begin(), all->end()), all->end());
  for (Member& member : world) {
    const std::string_view location = of_host[member.host_id];
    if (!location.empty()) member.location = static_cast<int>(std::ranges::lower_bound(*all, location) - all->begin());
  }
  return all;
}

std::string line_of_locations(const std::vector<std::string>& locations) {
  constexpr std::size_t kNamed = 8;
  return "locations of hosts in the network: " + name_list(locations, kNamed);
}

std::string warning_of_unknown_locations(std::span<const Member> world) {
  constexpr std::size_t kNamed = 3;
  std::map<std::string_view, bool> hosts;  // whether each has no location
  std::vector<std::string> unknown;
  for (const Member& member : world) {
    const bool is_new = hosts.try_emplace(member.host_id, member.location < 0).second;
    if (is_new && member.location < 0) unknown.push_back(member.host_name);
  }
  if (unknown.empty() || unknown.size() == hosts.size()) return {};
  return fmt::format(
      "{} of {} hosts have no location in the network: {}. They count as one group of hosts, and data may cross "
      "slow links more often than it must; set FARANDOLE_LOCATION there, or list them in the file of "
      "FARANDOLE_TOPOLOGY (docs/topology.md)",
      unknown.size(), hosts.size(), name_list(unknown, kNamed));
}

}  // namespace fdl
