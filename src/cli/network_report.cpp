// The drawing is that of a tree of groups, whose children are in the order of the ranks.
#include "cli/network_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/rank_list.h"
#include "base/split_list.h"
#include "bootstrap/topology/topology_file.h"
#include "cli/simulate/cluster_text.h"
#include "cli/table_text.h"

namespace fdl {
namespace {

constexpr std::size_t kShownChildren = 4;  // of a group with more, fewer are shown
constexpr std::size_t kLongestList = 40;   // characters

struct Group {
  std::string name;
  std::vector<int> ranks{};
  std::vector<Group> inside{};

  // Ranks come in their order, so a group that has begun is the last one.
  Group& child(const std::string& child_name) {
    if (inside.empty() || inside.back().name != child_name) inside.push_back({.name = child_name});
    return inside.back();
  }
};

Group tree_of(const GivenNetwork& network, const RankLevels& levels) {
  Group whole;
  for (int position = 0; position < network.ranks(); ++position) {
    const int rank = levels.order.rank(position);
    const auto host = static_cast<std::size_t>(network.host_of(rank));
    Group* group = &whole;
    if (!network.locations[host].empty()) {
      for (const std::string& name : split_list(network.locations[host], '/')) {
        group = &group->child(name);
        group->ranks.push_back(rank);
      }
    }
    group->child(network.hosts[host]).ranks.push_back(rank);
  }
  return whole;
}

std::string shortened(std::string list) {
  if (list.size() <= kLongestList) return list;
  list.resize(list.rfind(',', kLongestList));
  return list + ", ...";
}

using Row = std::vector<std::string>;

void add_rows(const Group& group, const std::string& indent, std::vector<Row>& rows) {
  const std::size_t count = group.inside.size();
  const std::size_t shown = count > kShownChildren ? kShownChildren - 1 : count;
  for (std::size_t i = 0; i < shown; ++i) {
    const Group& child = group.inside[i];
    std::vector<int> ranks = child.ranks;
    std::ranges::sort(ranks);
    rows.push_back(
        {indent + printable(child.name), (ranks.size() == 1 ? "rank " : "ranks ") + shortened(rank_list_text(ranks))});
    add_rows(child, indent + "  ", rows);
  }
  if (shown < count) rows.push_back({indent + fmt::format("and {} more", count - shown), ""});
}

// "4 groups of 8 ranks"
std::string among(const GroupShape& shape, std::size_t level) {
  if (level == 0) {
    return shape.ranks_per_host > 1 ? fmt::format("the {} ranks of a host", shape.levels[0])
                                    : fmt::format("{} neighbouring hosts", shape.levels[0]);
  }
  int inside = 1;
  for (std::size_t i = 0; i < level; ++i) inside *= shape.levels[i];
  return fmt::format("{} groups of {} ranks, one rank of each", shape.levels[level], inside);
}

Row stage(std::string_view what, std::string text, double before, double after) {
  return {"  " + std::string(what), "among " + std::move(text), bytes_text(before) + " -> " + bytes_text(after)};
}

}  // namespace

Result<GivenNetwork> network_of_levels(const std::string& text, int most) {
  std::vector<int> sizes;
  int64_t ranks = 1;
  for (const std::string& word : split_list(text)) {
    int size = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), size);
    if (error != std::errc() || end != word.data() + word.size() || size < 1) {
      return Status(Code::invalid_argument,
                    fmt::format("--levels '{}': '{}' is not a number above 0; give the sizes from the ranks of a host "
                                "outwards, such as 8,32,4 (8 ranks a host, 32 hosts a group, 4 groups)",
                                text, word));
    }
    sizes.push_back(size);
    ranks *= size;
    if (ranks > most) {
      return Status(Code::invalid_argument, fmt::format("--levels '{}' has more than {} ranks", text, most));
    }
  }
  if (sizes.size() > 7) {
    return Status(Code::invalid_argument, fmt::format("--levels '{}' has more than 7 levels", text));
  }
  GivenNetwork network{.ranks_per_host = sizes.front()};
  const int hosts = static_cast<int>(ranks) / sizes.front();
  for (int host = 0; host < hosts; ++host) {
    network.hosts.push_back(fmt::format("host {}", host));
    std::string location;
    int group = host;
    for (std::size_t level = 1; level + 1 < sizes.size(); ++level) {
      group /= sizes[level];
      const std::string name =
          sizes.size() == 3 ? fmt::format("group {}", group) : fmt::format("group {} of level {}", group, level + 1);
      location = name + (location.empty() ? "" : "/") + location;
    }
    network.locations.push_back(location);
  }
  return network;
}

Result<GivenNetwork> network_of_file(const std::string& path, int ranks_per_host) {
  FDL_ASSIGN_OR_RETURN(const TopologyFile file, read_topology_file(path));
  GivenNetwork network{.ranks_per_host = ranks_per_host};
  for (const TopologyFile::Entry& entry : file.entries) {
    if (entry.host == "*") continue;
    network.hosts.push_back(entry.host);
    network.locations.push_back(entry.location);
  }
  if (network.hosts.empty()) return Status(Code::invalid_argument, path + " lists no host");
  return network;
}

RankLevels levels_of(const GivenNetwork& network) {
  std::vector<int> location_of;
  std::vector<int> host_of;
  for (int rank = 0; rank < network.ranks(); ++rank) {
    host_of.push_back(network.host_of(rank));
    const bool is_known = !network.locations[static_cast<std::size_t>(host_of.back())].empty();
    location_of.push_back(is_known ? host_of.back() : -1);
  }
  auto depths = groups_of_locations(network.locations, location_of);
  depths.push_back(host_of);
  return order_ranks(depths);
}

std::string drawing_of(const GivenNetwork& network, const RankLevels& levels) {
  std::vector<Row> rows;
  add_rows(tree_of(network, levels), "  ", rows);
  return fmt::format("network, widest groups first, with their ranks\n{}\n", fmt::join(align(rows), "\n"));
}

std::string levels_text(const RankLevels& levels) {
  std::string text;
  const bool has_host_level = levels.ranks_per_host > 1;
  for (std::size_t i = 0; i < levels.levels.size(); ++i) {
    const bool is_last = i + 1 == levels.levels.size();
    const char* unit = i == 0 && has_host_level ? "ranks a host" : i <= (has_host_level ? 1 : 0) ? "hosts" : "groups";
    text += fmt::format("{}{} {}{}", i == 0 ? "levels: " : ", ", levels.levels[i], unit,
                        is_last || (i == 0 && has_host_level) ? "" : " a group");
  }
  if (levels.levels.empty()) text = "levels: none, because hosts have different numbers of ranks, or there is one rank";
  const std::string order = levels.order.is_by_rank()
                                ? std::string("that of the ranks")
                                : shortened(fmt::format("{}", fmt::join(levels.order.rank_at, ", ")));
  return fmt::format("{}\norder: {}\n", text, order);
}

std::string stages_text(const Algorithm& algorithm, const GroupShape& shape, int64_t bytes) {
  if (algorithm.name != "multi_level" || shape.levels.size() < 2) return {};
  const bool gathers = algorithm.collective == Collective::allgather;
  const std::string_view outwards = gathers ? "allgather" : "reduce-scatter";
  std::vector<Row> rows;
  auto left = static_cast<double>(bytes);
  for (std::size_t i = 0; i < shape.levels.size(); ++i) {
    const double after = left / shape.levels[i];
    rows.push_back(gathers ? stage(outwards, among(shape, i), after, left)
                           : stage(outwards, among(shape, i), left, after));
    left = after;
  }
  if (gathers) std::ranges::reverse(rows);
  for (std::size_t i = shape.levels.size(); algorithm.collective == Collective::allreduce && i-- > 0;) {
    rows.push_back(stage("allgather", among(shape, i), left, left * shape.levels[i]));
    left *= shape.levels[i];
  }
  return fmt::format("multi_level in stages, with what each rank has before and after\n{}\n\n",
                     fmt::join(align(rows), "\n"));
}

void add_to(JsonLine& line, const GroupShape& shape) {
  line.list("levels", shape.levels);
  line.flag("order_by_rank", shape.order.is_by_rank());
  if (!shape.order.is_by_rank()) line.list("order", shape.order.rank_at);
}

}  // namespace fdl
