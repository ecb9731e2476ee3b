// Fuzzes decode() of the coordinator's messages: an accepted message survives being encoded and decoded again.
#include "bootstrap/coordinator/coordinator_wire.h"
#include "tests/fuzz/coordinator_messages.h"
#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

std::size_t bytes_of(const std::vector<HostRanks>& hosts) {
  std::size_t bytes = 0;
  for (const HostRanks& host : hosts) {
    bytes += host.host_name.size() + host.boot_id.size() + sizeof(RankRange) * host.ranges.size();
    for (const RankRange& range : host.ranges) FDL_CHECK(range.first >= 0 && range.count > 0);
  }
  return bytes;
}

bool run(ConstBytes input) {
  const auto message = decode(text_of(input));
  if (!message.ok()) {
    FDL_CHECK(!message.status().text().empty());
    return false;
  }
  std::size_t bytes = message->key.size() + message->value.size() + 4 * message->ranks.size();
  for (const CoordinatorClient::Hello& member : message->members) {
    bytes += member.host_name.size() + member.boot_id.size() + member.location.size();
    for (const CompatibilitySetting& setting : member.settings) {
      bytes += setting.name.size() + setting.value.size() + setting.remedy.size();
    }
  }
  if (message->state) {
    for (const auto* waits : {&message->state->operations, &message->state->names}) {
      FDL_CHECK(waits->size() <= RankState::kMostWaits);
      for (const RankState::Wait& wait : *waits) {
        bytes += wait.group.size() + wait.operation.size() + wait.phase.size() + 4 * wait.ranks.size();
      }
    }
  }
  if (message->state) {
    FDL_CHECK(message->state->agreements.size() <= RankState::kMostWaits);
    for (const RankState::Agreement& one : message->state->agreements) bytes += one.group.size() + one.text.size();
    bytes += message->state->stacks.size();
  }
  for (const std::string& value : message->values) bytes += value.size();
  bytes += bytes_of(message->hosts);
  if (message->table) {
    const MemberTable& table = *message->table;
    bytes += bytes_of(table.hosts) + 4 * (table.process_ids.size() + table.numa_nodes.size()) + table.efa.size();
    for (const auto* texts : {&table.recovery, &table.addresses, &table.locations}) {
      for (const std::string& text : *texts) bytes += text.size();
    }
    bytes += 2 * (table.ports.size() + table.host_locations.size());
    for (const int size : {0, 1, 3}) static_cast<void>(members_of(table, size));
  }
  FDL_CHECK(bytes <= 3 * input.size());          // tables that share strings must not multiply them
  const std::string encoded = encode(*message);  // texts of failures may be cut
  const auto again = decode(encoded);
  FDL_CHECK(again.ok() && encode(*again) == encoded);
  FDL_CHECK(again->kind == message->kind && again->id == message->id && again->ranks == message->ranks);
  FDL_CHECK(again->key == message->key && again->value == message->value);
  FDL_CHECK(again->state.has_value() == message->state.has_value());
  FDL_CHECK(again->members.size() == message->members.size());
  return true;
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const CoordinatorMessage& message : some_messages()) all.push_back(encode(message));
  CoordinatorMessage reply{.kind = CoordinatorMessage::Kind::reply};
  reply.table = table_of({{0, 3, "host-a", "boot", 100}, {1, 3, "host-b", "boot", 101}, {2, 3, "host-a", "boot", 102}});
  reply.table->recovery = {"unix:@a", "unix:@b", "unix:@c"};
  reply.values = {"10.0.0.7:4242", ""};
  all.push_back(encode(reply));
  const std::string boot = "3f0e4a5c-7d21-4b10-8abc-0123456789ab";
  reply.table = table_of({{0, 2, "host-a", boot, 100, {}, -1, 0, "10.0.0.7:4242"},
                          {1, 2, "host-a", boot, 101, {}, -1, 0, "10.0.0.7:4243"}});
  all.push_back(encode(reply));
  reply.table = table_of({{.rank = 0, .size = 2, .host_name = "host-a", .boot_id = boot, .location = "zone-a/rack-3"},
                          {.rank = 1, .size = 2, .host_name = "host-b", .boot_id = boot, .location = "zone-a/rack-4"}});
  all.push_back(encode(reply));
  CoordinatorMessage departed{.kind = CoordinatorMessage::Kind::departed};
  departed.hosts = {{.host_name = "host-a", .ranges = {{0, 1}, {2, 1}}}};
  all.push_back(encode(departed));
  CoordinatorMessage lost{.kind = CoordinatorMessage::Kind::lost_together};
  lost.ranks = {2, 0};
  lost.values = {"rank 2 was lost", "rank 0 was lost"};
  lost.hosts = departed.hosts;
  all.push_back(encode(lost));
  return all;
}

}  // namespace

const Target coordinator_message{"coordinator_message", run, seeds};

}  // namespace fdl::fuzz
