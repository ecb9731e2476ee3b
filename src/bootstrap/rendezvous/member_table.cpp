// Ranks of a host share one entry, also where other hosts have ranks between them.
#include "bootstrap/rendezvous/member_table.h"

#include <fmt/core.h>

#include <map>
#include <string_view>

namespace fdl {
namespace {

using Hello = CoordinatorClient::Hello;

// Drops a list whose entries all have the default value.
template <typename T>
void drop_if_all(std::vector<T>& list, const T& value) {
  if (std::ranges::all_of(list, [&](const T& one) { return one == value; })) list.clear();
}

template <typename T>
bool fits(const std::vector<T>& list, std::size_t size) {
  return list.empty() || list.size() == size;
}

}  // namespace

MemberTable table_of(const std::vector<Hello>& members) {
  MemberTable table;
  std::map<std::pair<std::string_view, std::string_view>, std::size_t> host_of;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Hello& member = members[i];
    const auto [found, is_new] = host_of.try_emplace({member.host_name, member.boot_id}, table.hosts.size());
    if (is_new) table.hosts.push_back({.host_name = member.host_name, .boot_id = member.boot_id});
    append_rank(table.hosts[found->second].ranges, static_cast<int>(i));
    table.process_ids.push_back(member.process_id);
    table.numa_nodes.push_back(member.numa_node);
    table.efa.push_back(member.efa);
    table.recovery.push_back(member.recovery);
  }
  const Hello usual;
  drop_if_all(table.process_ids, usual.process_id);
  drop_if_all(table.numa_nodes, usual.numa_node);
  drop_if_all(table.efa, usual.efa);
  drop_if_all(table.recovery, usual.recovery);
  if (!members.empty()) table.salt = members.front().salt;
  return table;
}

Result<std::vector<Hello>> members_of(const MemberTable& table, int size) {
  const auto broken = [&] {
    return Status(Code::transport, fmt::format("coordinator: its table does not list each of the {} ranks once", size));
  };
  const auto count = static_cast<std::size_t>(size);
  if (!fits(table.process_ids, count) || !fits(table.numa_nodes, count) || !fits(table.efa, count) ||
      !fits(table.recovery, count)) {
    return broken();
  }
  std::vector<Hello> members(count);
  std::vector<bool> found(count);
  int listed = 0;
  for (const HostRanks& host : table.hosts) {
    for (const RankRange& range : host.ranges) {
      if (range.first < 0 || range.count < 1 || range.first >= size || range.count > size - range.first)
        return broken();
      for (int rank = range.first; rank < range.first + range.count; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        if (found[at]) return broken();
        found[at] = true;
        ++listed;
        Hello& member = members[at];
        member.rank = rank;
        member.size = size;
        member.host_name = host.host_name;
        member.boot_id = host.boot_id;
        if (!table.process_ids.empty()) member.process_id = table.process_ids[at];
        if (!table.numa_nodes.empty()) member.numa_node = table.numa_nodes[at];
        if (!table.efa.empty()) member.efa = table.efa[at];
        if (!table.recovery.empty()) member.recovery = table.recovery[at];
      }
    }
  }
  if (listed != size) return broken();
  if (size > 0) members.front().salt = table.salt;
  return members;
}

}  // namespace fdl
