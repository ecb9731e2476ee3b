// Tables and lines of JSON of simulated starts and losses.
#include "cli/simulate/simulated_control.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <string_view>

#include "base/split_list.h"
#include "cli/json_line.h"
#include "cli/simulate/cluster_text.h"
#include "cli/table_text.h"

namespace fdl {
namespace {

// More ranks than this are refused: the simulation would take too long and too much memory.
constexpr int kMostSimulatedRanks = 32768;

Status check_size(const Cluster& cluster) {
  if (cluster.ranks() <= kMostSimulatedRanks) return {};
  return Status(Code::invalid_argument, fmt::format("--start and --lose simulate at most {} ranks, not {}",
                                                    kMostSimulatedRanks, cluster.ranks()));
}

Status bad_victim(const std::string& text) {
  return Status(Code::invalid_argument, "--lose '" + text +
                                            "': give rank:7@3s, host:2@3s or coordinator@3s, and ,silent for one that "
                                            "is stopped or cut off");
}

// A point of a picture with one row for each time.
SimulatedPoint point_of(const Cluster& cluster, const std::vector<std::pair<std::string, double>>& times) {
  SimulatedPoint point{.cluster = cluster};
  for (const auto& [name, seconds] : times) {
    SimulatedRow row{.name = name};
    row.run = SimulatedCollective{.seconds = seconds};
    point.rows.push_back(std::move(row));
  }
  return point;
}

std::string costs_text(const ControlCosts& costs) {
  return fmt::format(
      "the coordinator takes {} for a handshake, {} for a message, authenticates {} a second, and writes {}",
      seconds_text(costs.handshake_s), seconds_text(costs.message_s), bytes_text(costs.seal_bytes_per_s),
      bytes_text(costs.write_bytes_per_s));
}

JsonLine line_of(const char* what, const Cluster& cluster) {
  JsonLine line;
  line.text("simulated", what).number("hosts", static_cast<long long>(cluster.hosts));
  line.number("ranks", static_cast<long long>(cluster.ranks()));
  return line;
}

void print_start_json(const Cluster& cluster, const SimulatedStart& start) {
  JsonLine line = line_of("start", cluster);
  line.number("connected_s", start.connected_s).number("table_s", start.table_s).number("hosts_s", start.hosts_s);
  line.number("memory_s", start.memory_s).number("time_s", start.seconds).number("first_rank_s", start.first_rank_s);
  line.number("connections", static_cast<long long>(start.connections)).number("connections_of_a_rank", 1LL);
  line.number("received", static_cast<long long>(start.received)).number("sent", static_cast<long long>(start.sent));
  line.number("sent_bytes", static_cast<long long>(start.sent_bytes));
  line.number("messages_of_a_rank", static_cast<long long>(start.most_messages));
  line.number("repeated_calls", static_cast<long long>(start.repeated_calls));
  fmt::print("{}\n", line.str());
}

void print_loss_json(const Cluster& cluster, const std::string& victim, const SimulatedLoss& loss) {
  JsonLine line = line_of("loss", cluster);
  line.text("victim", victim).number("victims", static_cast<long long>(loss.victims));
  line.number("first_s", loss.first_s).number("time_s", loss.last_s);
  if (loss.warned_s >= 0) line.number("warned_s", loss.warned_s);
  line.number("received", static_cast<long long>(loss.received)).number("sent", static_cast<long long>(loss.sent));
  line.number("messages_of_a_rank", static_cast<long long>(loss.most_messages));
  fmt::print("{}\n", line.str());
}

void print_rows(const std::vector<std::vector<std::string>>& rows) {
  for (const std::string& line : align(rows)) fmt::print("{}\n", line);
}

}  // namespace

Result<SimulatedVictim> parse_victim(const std::string& text) {
  SimulatedVictim victim;
  std::string_view rest = text;
  if (constexpr std::string_view kSilent = ",silent"; rest.ends_with(kSilent)) {
    victim.is_silent = true;
    rest.remove_suffix(kSilent.size());
  }
  const std::size_t at = rest.find('@');
  if (at == std::string_view::npos) return bad_victim(text);
  FDL_ASSIGN_OR_RETURN(victim.at_s, parse_seconds(rest.substr(at + 1)));
  rest = rest.substr(0, at);
  if (rest == "coordinator") {
    victim.kind = SimulatedVictim::Kind::coordinator;
    return victim;
  }
  const bool is_host = rest.starts_with("host:");
  if (!is_host && !rest.starts_with("rank:")) return bad_victim(text);
  victim.kind = is_host ? SimulatedVictim::Kind::host : SimulatedVictim::Kind::rank;
  rest.remove_prefix(5);
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), victim.number);
  if (error != std::errc() || end != rest.data() + rest.size() || victim.number < 0) return bad_victim(text);
  return victim;
}

Status parse_control_costs(const std::string& text, ControlCosts& costs) {
  const std::vector<std::string> parts = split_list(text);
  if (parts.size() != 3 && parts.size() != 4) {
    return Status(Code::invalid_argument,
                  "'" + text +
                      "': give the times of a handshake and of a message, the bytes that are authenticated in a "
                      "second, and, if you like, those that are written: 150us,8us,1.5GB,4.5GB");
  }
  FDL_ASSIGN_OR_RETURN(costs.handshake_s, parse_seconds(parts[0]));
  FDL_ASSIGN_OR_RETURN(costs.message_s, parse_seconds(parts[1]));
  FDL_ASSIGN_OR_RETURN(costs.seal_bytes_per_s, parse_bandwidth(parts[2]));
  if (parts.size() == 4) {
    FDL_ASSIGN_OR_RETURN(costs.write_bytes_per_s, parse_bandwidth(parts[3]));
  }
  return {};
}

Status print_simulated_starts(const std::vector<Cluster>& clusters, const ControlCosts& costs, bool json,
                              std::vector<SimulatedPoint>& points) {
  std::vector<std::vector<std::string>> rows{{"   hosts", "ranks", "connected", "table", "hosts known", "memory",
                                              "in the world", "first rank", "received", "sent", "bytes", "of a rank"}};
  for (const Cluster& cluster : clusters) {
    FDL_RETURN_IF_ERROR(check_size(cluster));
    const auto start = simulate_start(cluster, costs);
    if (!start.ok())
      return start.status().while_doing(fmt::format("simulating the start of {} ranks", cluster.ranks()));
    if (json) print_start_json(cluster, *start);
    rows.push_back({fmt::format("   {}", cluster.hosts), fmt::format("{}", cluster.ranks()),
                    seconds_text(start->connected_s), seconds_text(start->table_s), seconds_text(start->hosts_s),
                    seconds_text(start->memory_s), seconds_text(start->seconds), seconds_text(start->first_rank_s),
                    fmt::format("{}", start->received), fmt::format("{}", start->sent),
                    bytes_text(static_cast<double>(start->sent_bytes)), fmt::format("{}", start->most_messages)});
    points.push_back(point_of(cluster, {{"in the world", start->seconds}, {"connected", start->connected_s}}));
  }
  if (json) return {};
  fmt::print("start of a world; {}\n{}\n", costs_text(costs), cluster_text(clusters.back()));
  print_rows(rows);
  fmt::print("   connections: one of each rank with the coordinator\n");
  return {};
}

Status print_simulated_losses(const std::vector<Cluster>& clusters, const ControlCosts& costs,
                              const std::string& victim, bool json, std::vector<SimulatedPoint>& points) {
  FDL_ASSIGN_OR_RETURN(const SimulatedVictim parsed, parse_victim(victim));
  std::vector<std::vector<std::string>> rows{
      {"   hosts", "ranks", "lost", "first knows", "last knows", "last warning", "received", "sent", "of a rank"}};
  for (const Cluster& cluster : clusters) {
    FDL_RETURN_IF_ERROR(check_size(cluster));
    const auto loss = simulate_loss(cluster, costs, parsed);
    if (!loss.ok()) return loss.status().while_doing(fmt::format("simulating a loss of {} ranks", cluster.ranks()));
    if (json) print_loss_json(cluster, victim, *loss);
    rows.push_back({fmt::format("   {}", cluster.hosts), fmt::format("{}", cluster.ranks()),
                    fmt::format("{}", loss->victims), seconds_text(loss->first_s), seconds_text(loss->last_s),
                    loss->warned_s < 0 ? "-" : seconds_text(loss->warned_s), fmt::format("{}", loss->received),
                    fmt::format("{}", loss->sent), fmt::format("{}", loss->most_messages)});
    points.push_back(point_of(cluster, {{"last rank knows", loss->last_s}, {"first rank knows", loss->first_s}}));
  }
  if (json) return {};
  fmt::print("loss of {} while all ranks wait in one allreduce; {}\n{}\n", victim, costs_text(costs),
             cluster_text(clusters.back()));
  print_rows(rows);
  return {};
}

}  // namespace fdl
