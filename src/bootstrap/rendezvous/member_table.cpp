// Ranks of a host share one entry, also where other hosts have ranks between them.
#include "bootstrap/rendezvous/member_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#include "base/split_list.h"
#include "bootstrap/coordinator/coordinator_wire.h"
#include "bootstrap/topology/location.h"

namespace fdl {
namespace {

using Hello = CoordinatorClient::Hello;

constexpr std::size_t kMostLocations = std::numeric_limits<uint16_t>::max();

// Drops a list whose entries all have the default value.
template <typename T>
void drop_if_all(std::vector<T>& list, const T& value) {
  if (std::ranges::all_of(list, [&](const T& one) { return one == value; })) list.clear();
}

template <typename T>
bool fits(const std::vector<T>& list, std::size_t size) {
  return list.empty() || list.size() == size;
}

// "10.0.0.7:4242,192.168.0.7:4242" is one address, "10.0.0.7,192.168.0.7", with one port.
struct AddressAndPort {
  std::string address{};
  uint16_t port = 0;
};

// Nothing if the parts of the text have not one port in common.
std::optional<AddressAndPort> split_port(std::string_view text) {
  AddressAndPort result;
  if (text.empty()) return result;
  for (const std::string& part : split_list(text)) {
    const auto colon = part.rfind(':');
    uint16_t port = 0;
    if (colon == std::string::npos) return std::nullopt;
    const auto [end, error] = std::from_chars(part.data() + colon + 1, part.data() + part.size(), port);
    const bool is_other = !result.address.empty() && port != result.port;
    if (error != std::errc() || end != part.data() + part.size() || port == 0 || is_other) return std::nullopt;
    result.address.append(result.address.empty() ? "" : ",").append(part, 0, colon);
    result.port = port;
  }
  return result;
}

std::string joined_with_port(std::string_view address, uint16_t port) {
  std::string text;
  if (address.empty()) return text;
  for (const std::string& part : split_list(address)) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", part, port);
  }
  return text;
}

// Lists the locations of the hosts, whose ranks are in ascending order. Hosts beyond the limit of the index have none.
void add_locations(MemberTable& table, const std::vector<Hello>& members) {
  std::map<std::string_view, uint16_t> known;
  std::vector<uint16_t> indices;
  for (const HostRanks& host : table.hosts) {
    const std::string& location = members[static_cast<std::size_t>(host.ranges.front().first)].location;
    uint16_t index = 0;
    if (const auto found = known.find(location); found != known.end()) {
      index = found->second;
    } else if (!location.empty() && table.locations.size() < kMostLocations) {
      table.locations.push_back(location);
      index = static_cast<uint16_t>(table.locations.size());
      known.emplace(location, index);
    }
    indices.push_back(index);
  }
  if (!table.locations.empty()) table.host_locations = std::move(indices);
}

// Returns whether each index has a location, and each location fits.
bool are_valid_locations(const MemberTable& table) {
  return fits(table.host_locations, table.hosts.size()) &&
         std::ranges::all_of(table.host_locations, [&](std::size_t one) { return one <= table.locations.size(); }) &&
         std::ranges::all_of(table.locations,
                             [](const std::string& one) { return !one.empty() && one.size() <= kMostLocation; });
}

// Moves the ports out of the recovery addresses, if the ranks of each host have one address otherwise.
void take_out_ports(MemberTable& table) {
  std::vector<std::string> addresses(table.hosts.size());
  std::vector<uint16_t> ports(table.recovery.size());
  for (std::size_t host = 0; host < table.hosts.size(); ++host) {
    for (const RankRange& range : table.hosts[host].ranges) {
      for (int rank = range.first; rank < range.first + range.count; ++rank) {
        const std::string& whole = table.recovery[static_cast<std::size_t>(rank)];
        const auto parts = split_port(whole);
        // What joined_with_port() would not give back stays whole.
        if (!parts || whole.size() > kMostKey || joined_with_port(parts->address, parts->port) != whole) return;
        if (parts->port == 0) continue;
        std::string& address = addresses[host];
        if (address.empty()) address = parts->address;
        if (address != parts->address) return;
        ports[static_cast<std::size_t>(rank)] = parts->port;
      }
    }
  }
  table.recovery.clear();
  table.addresses = std::move(addresses);
  table.ports = std::move(ports);
}

}  // namespace

MemberTable table_of(const std::vector<Hello>& members) {
  MemberTable table;
  // Containers of one kernel may have one host name, and be on unlike hosts of a simulated network.
  std::map<std::tuple<std::string_view, std::string_view, std::string_view>, std::size_t> host_of;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Hello& member = members[i];
    const auto [found, is_new] =
        host_of.try_emplace({member.host_name, member.boot_id, member.location}, table.hosts.size());
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
  if (!table.recovery.empty()) take_out_ports(table);
  add_locations(table, members);
  if (!members.empty()) table.salt = members.front().salt;
  return table;
}

Result<std::vector<Hello>> members_of(const MemberTable& table, int size) {
  const auto broken = [&] {
    return Status(Code::transport, fmt::format("coordinator: its table does not list each of the {} ranks once", size));
  };
  const auto count = static_cast<std::size_t>(size);
  if (!fits(table.process_ids, count) || !fits(table.numa_nodes, count) || !fits(table.efa, count) ||
      !fits(table.recovery, count) || !fits(table.ports, count) || !fits(table.addresses, table.hosts.size()) ||
      !are_valid_locations(table)) {
    return broken();
  }
  std::vector<Hello> members(count);
  std::vector<bool> found(count);
  int listed = 0;
  for (std::size_t i = 0; i < table.hosts.size(); ++i) {
    const HostRanks& host = table.hosts[i];
    const uint16_t location = table.host_locations.empty() ? uint16_t{0} : table.host_locations[i];
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
        if (location > 0) member.location = table.locations[location - 1u];
        if (!table.process_ids.empty()) member.process_id = table.process_ids[at];
        if (!table.numa_nodes.empty()) member.numa_node = table.numa_nodes[at];
        if (!table.efa.empty()) member.efa = table.efa[at];
        if (!table.recovery.empty()) member.recovery = table.recovery[at];
        const bool has_port = !table.addresses.empty() && !table.ports.empty() && table.ports[at] != 0;
        if (has_port) member.recovery = joined_with_port(table.addresses[i], table.ports[at]);
      }
    }
  }
  if (listed != size) return broken();
  if (size > 0) members.front().salt = table.salt;
  return members;
}

}  // namespace fdl
