// A group is named by its lowest rank, at every depth. The order is then that of the lists of these names.
#include "algorithms/choice/rank_order.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "base/split_list.h"

namespace fdl {
namespace {

// Replaces the numbers of groups by the lowest rank of each, so that groups of unlike outer groups differ.
std::vector<std::vector<int>> named_by_lowest(std::span<const std::vector<int>> depths) {
  std::vector<std::vector<int>> named;
  const std::vector<int> whole(depths.front().size(), 0);
  for (const std::vector<int>& depth : depths) {
    const std::vector<int>& outer = named.empty() ? whole : named.back();
    std::unordered_map<int64_t, int> lowest;
    std::vector<int> names(depth.size());
    for (std::size_t rank = 0; rank < depth.size(); ++rank) {
      const int64_t group = (int64_t{outer[rank]} << 32) | static_cast<uint32_t>(depth[rank]);
      names[rank] = lowest.try_emplace(group, static_cast<int>(rank)).first->second;
    }
    named.push_back(std::move(names));
  }
  return named;
}

RankOrder order_of(const std::vector<std::vector<int>>& named, std::size_t ranks) {
  RankOrder order;
  order.rank_at.resize(ranks);
  for (std::size_t i = 0; i < ranks; ++i) order.rank_at[i] = static_cast<int>(i);
  const auto is_before = [&](int a, int b) {
    for (const std::vector<int>& names : named) {
      const int of_a = names[static_cast<std::size_t>(a)];
      const int of_b = names[static_cast<std::size_t>(b)];
      if (of_a != of_b) return of_a < of_b;
    }
    return a < b;
  };
  if (std::ranges::is_sorted(order.rank_at, is_before)) return {};
  std::ranges::sort(order.rank_at, is_before);
  order.position_of.resize(ranks);
  for (std::size_t i = 0; i < ranks; ++i) {
    order.position_of[static_cast<std::size_t>(order.rank_at[i])] = static_cast<int>(i);
  }
  return order;
}

struct GroupSizes {
  int groups = 0;
  int ranks = 0;  // of each group; 0 if they differ
};

GroupSizes sizes_of(const std::vector<int>& names) {
  std::vector<int> count(names.size(), 0);
  for (const int name : names) ++count[static_cast<std::size_t>(name)];
  GroupSizes sizes;
  bool differ = false;
  for (const int ranks : count) {
    if (ranks == 0) continue;
    differ |= sizes.groups > 0 && ranks != sizes.ranks;
    sizes.ranks = ranks;
    ++sizes.groups;
  }
  if (differ) sizes.ranks = 0;
  return sizes;
}

}  // namespace

RankLevels order_ranks(std::span<const std::vector<int>> depths) {
  FDL_CHECK(!depths.empty() && !depths.front().empty());
  const std::size_t ranks = depths.front().size();
  const std::vector<std::vector<int>> named = named_by_lowest(depths);
  const GroupSizes hosts = sizes_of(named.back());
  RankLevels found{.order = order_of(named, ranks), .hosts = hosts.groups, .ranks_per_host = hosts.ranks};
  if (hosts.ranks == 0) return found;
  int inside = 1;  // ranks of a group of the last level that was found
  const auto add = [&](int group) {
    if (group > inside) found.levels.push_back(group / inside);
    inside = std::max(inside, group);
  };
  // Groups of equal size are made of whole groups of equal size, so each size divides the next one.
  add(hosts.ranks);
  for (std::size_t depth = named.size() - 1; depth-- > 0;) add(sizes_of(named[depth]).ranks);
  add(static_cast<int>(ranks));
  return found;
}

std::vector<std::vector<int>> groups_of_locations(std::span<const std::string> locations,
                                                  std::span<const int> location_of) {
  std::vector<std::vector<std::string>> names;
  std::size_t most = 0;
  for (const std::string& location : locations) {
    names.push_back(split_list(location, '/'));
    most = std::max(most, names.back().size());
  }
  std::vector<std::vector<int>> depths(most);
  for (std::size_t depth = 0; depth < most; ++depth) {
    std::unordered_map<std::string_view, int> numbers{{"", 0}};
    std::vector<int> number_of;
    for (const auto& of_location : names) {
      const std::string_view name = depth < of_location.size() ? of_location[depth] : std::string_view();
      number_of.push_back(numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second);
    }
    for (const int location : location_of) {
      depths[depth].push_back(location < 0 ? 0 : number_of[static_cast<std::size_t>(location)]);
    }
  }
  return depths;
}

int level_between(std::span<const int> levels, int position, int other) {
  int level = 0;
  for (const int size : levels) {
    position /= size;
    other /= size;
    if (position == other) break;
    ++level;
  }
  return level;
}

}  // namespace fdl
