// Each parser names the text that it refuses and gives an example of one that it takes.
#include "cli/simulate/cluster_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "base/config.h"
#include "base/split_list.h"

namespace fdl {
namespace {

// Splits "10us" into 10 and "us". Nothing if the text does not begin with a number.
std::optional<std::pair<double, std::string_view>> number_and_unit(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  return std::pair(number, unit);
}

using Unit = std::pair<std::string_view, double>;

template <std::size_t count>
std::optional<double> in_units(std::string_view text, const std::array<Unit, count>& units) {
  const auto parts = number_and_unit(text);
  if (!parts) return std::nullopt;
  for (const auto& [name, factor] : units) {
    if (parts->second == name) return parts->first * factor;
  }
  return std::nullopt;
}

Status refuse(std::string_view text, std::string_view what) {
  return Status(Code::invalid_argument, fmt::format("'{}' is not {}", text, what));
}

std::string bandwidth_text(double bytes_per_s) { return fmt::format("{:.4g} Gbit/s", bytes_per_s * 8e-9); }

std::string link_text(const ClusterLink& link) {
  std::string text = fmt::format("{}, latency {}, overhead {}", bandwidth_text(link.bytes_per_s),
                                 seconds_text(link.latency_s), seconds_text(link.overhead_s));
  return link.gap_s > 0 ? text + ", gap " + seconds_text(link.gap_s) : text;
}

bool is_level_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

// "2:1", as 2. Nothing unless it is at least 1.
std::optional<double> ratio_of(std::string_view text) {
  const auto in = number_and_unit(text);
  if (!in || !in->second.starts_with(':')) return std::nullopt;
  const auto out = number_and_unit(in->second.substr(1));
  if (!out || !out->second.empty() || !(out->first > 0) || !(in->first >= out->first)) return std::nullopt;
  return in->first / out->first;
}

// "rack:32", "rack:32,2:1", "rack:32,5us" or "rack:32,2:1,5us".
std::optional<SwitchLevel> level_of(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || !is_level_name(text.substr(0, colon))) return std::nullopt;
  SwitchLevel level{.name = std::string(text.substr(0, colon))};
  const std::vector<std::string> parts = split_list(text.substr(colon + 1));
  if (parts.empty() || parts.size() > 3) return std::nullopt;
  const auto hosts = number_and_unit(parts[0]);
  if (!hosts || !hosts->second.empty() || hosts->first < 1 || hosts->first > 65536 ||
      hosts->first != std::floor(hosts->first))
    return std::nullopt;
  level.hosts = static_cast<int>(hosts->first);
  std::size_t next = 1;
  if (next < parts.size() && parts[next].find(':') != std::string::npos) {
    const auto ratio = ratio_of(parts[next++]);
    if (!ratio) return std::nullopt;
    level.oversubscription = *ratio;
  }
  if (next < parts.size()) {
    const auto latency_s = parse_seconds(parts[next++]);
    if (!latency_s.ok()) return std::nullopt;
    level.latency_s = *latency_s;
  }
  return next == parts.size() ? std::optional(std::move(level)) : std::nullopt;
}

Status wrong_topology(std::string_view text) {
  return refuse(text,
                "a topology: flat, or levels of switches as NAME:HOSTS[,IN:OUT][,LATENCY], from the widest to the "
                "narrowest, such as rack:32,2:1 (racks of 32 hosts whose uplink has half of the bandwidth of their "
                "cards) or zone:512,4:1,400us/rack:32,2:1 (also zones of 16 racks)");
}

}  // namespace

Result<double> parse_seconds(std::string_view text) {
  static constexpr std::array<Unit, 4> kUnits{{{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};
  const auto seconds = in_units(text, kUnits);
  if (seconds && *seconds >= 0 && *seconds <= 3600) return *seconds;
  return refuse(text, "a time between 0s and an hour with its unit, such as 250ns, 10us, 1.5ms or 2s");
}

Result<double> parse_bandwidth(std::string_view text) {
  static constexpr std::array<Unit, 8> kUnits{{{"Tbit", 125e9},
                                               {"Gbit", 125e6},
                                               {"Mbit", 125e3},
                                               {"kbit", 125},
                                               {"TB", 1e12},
                                               {"GB", 1e9},
                                               {"MB", 1e6},
                                               {"kB", 1e3}}};
  const auto speed = in_units(text, kUnits);
  if (speed && *speed >= 1 && *speed <= 1e15) return *speed;
  return refuse(text, "a bandwidth above 0 with its unit, such as 100Gbit, 400Mbit or 12.5GB (per second)");
}

Result<double> parse_fraction(std::string_view text) {
  static constexpr std::array<Unit, 2> kUnits{{{"%", 0.01}, {"", 1}}};
  const auto fraction = in_units(text, kUnits);
  if (fraction && *fraction >= 0 && *fraction <= 100) return *fraction;
  return refuse(text, "a fraction such as 5% or 0.05");
}

Status parse_link(const std::string& text, ClusterLink& link) {
  const std::vector<std::string> parts = split_list(text);
  const bool has_gap = parts.size() == 4 && parts[3].starts_with("gap=");
  if (parts.size() != 3 && !has_gap)
    return refuse(text, "BANDWIDTH,LATENCY,OVERHEAD, such as 100Gbit,10us,0.5us (and gap=1us after it)");
  FDL_ASSIGN_OR_RETURN(link.bytes_per_s, parse_bandwidth(parts[0]));
  FDL_ASSIGN_OR_RETURN(link.latency_s, parse_seconds(parts[1]));
  FDL_ASSIGN_OR_RETURN(link.overhead_s, parse_seconds(parts[2]));
  if (!has_gap) return {};
  FDL_ASSIGN_OR_RETURN(link.gap_s, parse_seconds(std::string_view(parts[3]).substr(4)));
  return {};
}

Status parse_topology(const std::string& text, Cluster& cluster) {
  cluster.switches.clear();
  if (text == "flat") return {};
  std::vector<SwitchLevel> levels;
  for (const std::string& part : split_list(text, '/')) {
    auto level = level_of(part);
    if (!level || (!levels.empty() && level->hosts >= levels.back().hosts)) return wrong_topology(text);
    levels.push_back(std::move(*level));
  }
  cluster.switches.assign(std::make_move_iterator(levels.rbegin()), std::make_move_iterator(levels.rend()));
  return {};
}

Status parse_stragglers(const std::string& text, Cluster& cluster) {
  if (text.empty()) return {};
  const auto wrong = [&] { return refuse(text, "RANKS:TIME, such as 3:10ms (three ranks begin 10 ms late)"); };
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return wrong();
  const auto ranks = number_and_unit(std::string_view(text).substr(0, colon));
  if (!ranks || !ranks->second.empty() || ranks->first < 0 || ranks->first > 65536 ||
      ranks->first != std::floor(ranks->first))
    return wrong();
  cluster.stragglers = static_cast<int>(ranks->first);
  FDL_ASSIGN_OR_RETURN(cluster.straggler_delay_s, parse_seconds(std::string_view(text).substr(colon + 1)));
  return {};
}

Result<std::vector<int64_t>> parse_sizes(const std::string& text, int64_t factor, int64_t least, int64_t most) {
  std::vector<int64_t> sizes;
  const auto one = [&](std::string_view word) -> Result<int64_t> {
    FDL_ASSIGN_OR_RETURN(const std::size_t size, parse_bytes(word));
    if (static_cast<int64_t>(size) < least || size > static_cast<std::size_t>(most)) {
      return refuse(word,
                    fmt::format("between {} and {}", least, most == kMostBytes ? "16384G" : std::to_string(most)));
    }
    return static_cast<int64_t>(size);
  };
  for (const std::string& word : split_list(text)) {
    const std::size_t colon = word.find(':');
    FDL_ASSIGN_OR_RETURN(const int64_t first, one(word.substr(0, colon)));
    sizes.push_back(first);
    if (colon == std::string::npos) continue;
    FDL_ASSIGN_OR_RETURN(const int64_t last, one(word.substr(colon + 1)));
    if (last < first) return refuse(word, "a range from a smaller to a larger number");
    while (sizes.back() * factor < last) sizes.push_back(sizes.back() * factor);
    if (last > sizes.back()) sizes.push_back(last);
  }
  if (sizes.empty()) return refuse(text, "a list of numbers");
  return sizes;
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.4g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.4g} s", seconds);
}

std::string bytes_text(double bytes) {
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return fmt::format("{:.4g} {}", bytes, std::array{"B", "KiB", "MiB", "GiB", "TiB"}[static_cast<std::size_t>(unit)]);
}

std::string cluster_text(const Cluster& cluster) {
  std::string text = fmt::format("{} host{} with {} rank{} each", cluster.hosts, cluster.hosts == 1 ? "" : "s",
                                 cluster.ranks_per_host, cluster.ranks_per_host == 1 ? "" : "s");
  if (cluster.hosts > 1) text += "; between hosts " + link_text(cluster.network);
  if (cluster.ranks_per_host > 1) {
    text += "; inside hosts " + link_text(cluster.local) + (cluster.local_ports ? ", a port a rank" : ", shared");
  }
  for (auto level = cluster.switches.rbegin(); level != cluster.switches.rend(); ++level) {
    text += fmt::format("; {}s of {} hosts, {:.4g}:1", level->name, level->hosts, level->oversubscription);
    if (level->latency_s > 0) text += ", latency +" + seconds_text(level->latency_s);
  }
  if (cluster.noise > 0) text += fmt::format("; noise {:.4g} %", 100 * cluster.noise);
  if (cluster.stragglers > 0)
    text += fmt::format("; {} stragglers, {} late", cluster.stragglers, seconds_text(cluster.straggler_delay_s));
  if (!cluster.is_regular()) text += fmt::format("; seed {}", cluster.seed);
  return text;
}

}  // namespace fdl
