// Hosts are packed if each has one range of ranks and a boot id of Linux; otherwise each is a table.
#include "bootstrap/rendezvous/member_table_wire.h"

#include <limits>
#include <string>
#include <utility>

#include "bootstrap/coordinator/coordinator_wire.h"
#include "system/handshake.h"

namespace fdl {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr std::size_t kBootIdBytes = 16;

// Returns false for ranks beyond the limit of a job, and for none.
bool append_range(std::vector<RankRange>& ranges, int first, int count) {
  if (first < 0 || count < 1 || first >= kMostRanks || count > kMostRanks - first) return false;
  ranges.push_back({first, count});
  return true;
}

// ---- Texts one behind the other ----

constexpr std::size_t kMostInColumn = std::numeric_limits<uint16_t>::max();

Offset<coordinator_wire::Texts> encode_column(FlatBufferBuilder& builder, const std::vector<std::string>& texts) {
  if (texts.empty()) return {};
  std::vector<uint16_t> sizes;
  std::vector<uint8_t> bytes;
  for (const std::string& text : texts) {
    sizes.push_back(static_cast<uint16_t>(text.size()));
    bytes.insert(bytes.end(), text.begin(), text.end());
  }
  const auto all = builder.CreateVector(bytes);
  return coordinator_wire::CreateTexts(builder, all, builder.CreateVector(sizes));
}

// Returns false if the sizes are not those of the bytes.
bool decode_column(const coordinator_wire::Texts* column, Budget& budget, std::vector<std::string>& decoded) {
  if (column == nullptr) return true;
  const std::vector<uint8_t> bytes = budget.numbers_of(column->bytes());
  std::size_t at = 0;
  for (const uint16_t size : budget.numbers_of(column->sizes())) {
    if (size > bytes.size() - at) return false;
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    decoded.emplace_back(begin, begin + size);
    at += size;
  }
  return at == bytes.size();
}

// ---- Hosts ----

std::string boot_id_of(const uint8_t* bytes) {
  std::string text = hex({reinterpret_cast<const std::byte*>(bytes), kBootIdBytes});
  for (const std::size_t dash : {8, 13, 18, 23}) text.insert(dash, 1, '-');
  return text;
}

// Nothing if the hosts cannot be packed.
std::optional<std::vector<uint8_t>> boot_ids_of(const std::vector<HostRanks>& hosts) {
  std::vector<uint8_t> all;
  for (const HostRanks& host : hosts) {
    const auto bytes = bytes_of_boot_id(host.boot_id);
    if (!bytes || host.ranges.size() != 1 || host.host_name.size() > kMostInColumn) return std::nullopt;
    all.insert(all.end(), bytes->begin(), bytes->end());
  }
  return all;
}

Offset<coordinator_wire::PackedHosts> encode_packed(FlatBufferBuilder& builder, const std::vector<HostRanks>& hosts,
                                                    const std::vector<uint8_t>& boot_ids) {
  std::vector<std::string> names;
  std::vector<int> ranks;
  for (const HostRanks& host : hosts) {
    names.push_back(host.host_name);
    ranks.insert(ranks.end(), {host.ranges.front().first, host.ranges.front().count});
  }
  const auto column = encode_column(builder, names);
  const auto boots = builder.CreateVector(boot_ids);
  return coordinator_wire::CreatePackedHosts(builder, column, boots, builder.CreateVector(ranks));
}

bool decode_packed(const coordinator_wire::PackedHosts* packed, Budget& budget, std::vector<HostRanks>& decoded) {
  if (packed == nullptr) return true;
  std::vector<std::string> names;
  if (!decode_column(packed->names(), budget, names)) return false;
  const std::vector<uint8_t> boot_ids = budget.numbers_of(packed->boot_ids());
  const std::vector<int> ranks = budget.numbers_of(packed->ranks());
  if (!decoded.empty() || boot_ids.size() != kBootIdBytes * names.size() || ranks.size() != 2 * names.size()) {
    return false;
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    HostRanks& host = decoded.emplace_back();
    host.host_name = std::move(names[i]);
    host.boot_id = boot_id_of(&boot_ids[kBootIdBytes * i]);
    if (!append_range(host.ranges, ranks[2 * i], ranks[2 * i + 1])) return false;
  }
  return true;
}

}  // namespace

std::optional<std::vector<uint8_t>> bytes_of_boot_id(std::string_view text) {
  constexpr std::string_view kForm = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (text.size() != kForm.size()) return std::nullopt;
  std::vector<uint8_t> bytes;
  bool is_second = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (kForm[i] == '-') {
      if (c != '-') return std::nullopt;
      continue;
    }
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && (c < 'a' || c > 'f')) return std::nullopt;
    const int value = is_digit ? c - '0' : c - 'a' + 10;
    if (!is_second) bytes.push_back(0);
    bytes.back() = static_cast<uint8_t>(bytes.back() << 4 | value);
    is_second = !is_second;
  }
  return bytes;
}

WireHosts encode_hosts(FlatBufferBuilder& builder, const std::vector<HostRanks>& hosts) {
  if (hosts.empty()) return {};
  std::vector<Offset<coordinator_wire::Host>> encoded;
  for (const HostRanks& host : hosts) {
    std::vector<int> ranks;
    for (const RankRange& range : host.ranges) ranks.insert(ranks.end(), {range.first, range.count});
    const auto name = builder.CreateString(host.host_name);
    const auto boot = builder.CreateString(host.boot_id);
    encoded.push_back(coordinator_wire::CreateHost(builder, name, boot, builder.CreateVector(ranks)));
  }
  return builder.CreateVector(encoded);
}

bool decode_hosts(const flatbuffers::Vector<Offset<coordinator_wire::Host>>* hosts, Budget& budget,
                  std::vector<HostRanks>& decoded) {
  if (hosts == nullptr) return true;
  for (const coordinator_wire::Host* host : *hosts) {
    if (!budget.spend()) break;
    HostRanks& one = decoded.emplace_back();
    one.host_name = budget.text_of(host->host_name());
    one.boot_id = budget.text_of(host->boot_id());
    const std::vector<int> ranks = budget.numbers_of(host->ranks());
    if (ranks.size() % 2 != 0) return false;
    for (std::size_t i = 0; i < ranks.size(); i += 2) {
      if (!append_range(one.ranges, ranks[i], ranks[i + 1])) return false;
    }
  }
  return true;
}

WireTexts encode_texts(FlatBufferBuilder& builder, const std::vector<std::string>& texts) {
  return texts.empty() ? WireTexts() : builder.CreateVectorOfStrings(texts);
}

Offset<coordinator_wire::MemberTable> encode_table(FlatBufferBuilder& builder,
                                                   const std::optional<MemberTable>& table) {
  if (!table) return {};
  Offset<coordinator_wire::PackedHosts> packed;
  WireHosts hosts;
  if (const auto boot_ids = boot_ids_of(table->hosts)) {
    packed = encode_packed(builder, table->hosts, *boot_ids);
  } else {
    hosts = encode_hosts(builder, table->hosts);
  }
  const auto processes = builder.CreateVector(table->process_ids);
  const auto nodes = builder.CreateVector(table->numa_nodes);
  const auto efa = builder.CreateVector(table->efa);
  const auto recovery = encode_texts(builder, table->recovery);
  const auto addresses = encode_column(builder, table->addresses);
  const auto ports = builder.CreateVector(table->ports);
  const auto locations = encode_column(builder, table->locations);
  Offset<flatbuffers::Vector<uint16_t>> host_locations;
  if (!table->host_locations.empty()) host_locations = builder.CreateVector(table->host_locations);
  return coordinator_wire::CreateMemberTable(builder, hosts, processes, nodes, efa, recovery,
                                             builder.CreateString(table->salt), packed, addresses, ports, locations,
                                             host_locations);
}

bool decode_table(const coordinator_wire::MemberTable* table, Budget& budget, std::optional<MemberTable>& decoded) {
  if (table == nullptr) return true;
  MemberTable& one = decoded.emplace();
  if (!decode_hosts(table->hosts(), budget, one.hosts) || !decode_packed(table->packed(), budget, one.hosts) ||
      !decode_column(table->addresses(), budget, one.addresses) ||
      !decode_column(table->locations(), budget, one.locations)) {
    return false;
  }
  one.host_locations = budget.numbers_of(table->host_locations());
  one.process_ids = budget.numbers_of(table->process_ids());
  one.numa_nodes = budget.numbers_of(table->numa_nodes());
  one.efa = budget.numbers_of(table->efa());
  one.recovery = budget.texts_of(table->recovery());
  one.ports = budget.numbers_of(table->ports());
  one.salt = budget.text_of(table->salt());
  return true;
}

}  // namespace fdl
