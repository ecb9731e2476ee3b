// The sources of a location are read in the order of their precedence.
#include "bootstrap/topology/location.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/split_list.h"
#include "bootstrap/launchers/process_launchers.h"
#include "bootstrap/launchers/variables.h"
#include "bootstrap/topology/topology_file.h"

namespace fdl {
namespace {

constexpr const char* kRemedy = "set FARANDOLE_LOCATION or FARANDOLE_TOPOLOGY";
constexpr std::size_t kMostQuoted = 200;

// The text in quotes, cut, with a question mark for each character that is not printable.
std::string in_quotes(std::string_view text) {
  std::string shown(text.substr(0, kMostQuoted));
  std::ranges::replace_if(
      shown, [](char c) { return !is_printable(c) && c != ' '; }, '?');
  return fmt::format("'{}{}'", shown, text.size() > kMostQuoted ? "..." : "");
}

std::string short_name(std::string_view name) { return std::string(name.substr(0, name.find('.'))); }

// "i-" and hexadecimal digits.
bool is_instance_id(std::string_view text) {
  return text.starts_with("i-") && text.size() > 2 &&
         text.find_first_not_of("0123456789abcdef", 2) == std::string_view::npos;
}

// On Nitro instances of EC2 it is the instance's id. A pod has its node's.
std::string board_tag(const std::string& sysfs) {
  std::ifstream file(sysfs + "/devices/virtual/dmi/id/board_asset_tag");
  std::string tag;
  file >> tag;
  return tag;
}

// The names under which a file may list this host.
std::vector<std::string> names_of_host(const Environment& environment, const Config& config, std::string_view host) {
  std::vector<std::string> names;
  const auto add = [&](std::string name) {
    if (!name.empty() && std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  };
  const std::string node = Variables(environment).text("FARANDOLE_NODE_NAME");
  add(std::string(host));
  add(short_name(host));
  add(node);
  if (is_instance_id(short_name(node))) add(short_name(node));
  if (const std::string tag = board_tag(config.sysfs_root); is_instance_id(tag)) add(tag);
  return names;
}

Result<HostLocation> location_in_file(const Environment& environment, const Config& config, std::string_view host) {
  const auto file = read_topology_file(config.topology);
  if (!file.ok()) return Status(file.status().code(), fmt::format("FARANDOLE_TOPOLOGY: {}", file.status().text()));
  const std::vector<std::string> names = names_of_host(environment, config, host);
  const TopologyFile::Entry* entry = file->find(names);
  if (entry == nullptr) {
    return HostLocation{{}, fmt::format("{} lists none of: {}", config.topology, fmt::join(names, ", "))};
  }
  const std::string line = entry->line > 0 ? fmt::format(", line {}", entry->line) : "";
  return HostLocation{entry->location, config.topology + line};
}

// Returns whether Slurm started this process or its batch script. The ranks of an mpirun in a batch script on the first
// node inherit the variables of the script; elsewhere they are tasks of a step. SLURMD_NODENAME excludes variables that
// were passed on from another host.
bool is_on_slurm_node(const Variables& variables, std::string_view host) {
  if (is_slurm_task(variables)) return true;
  const std::string node = variables.text("SLURMD_NODENAME");
  return variables.has("SLURM_JOB_ID") && !node.empty() && (node == host || short_name(node) == short_name(host));
}

// Slurm writes "s0.s4.tux7" with the pattern "switch.switch.node". Only the name of the node may have points. Nothing
// if the address does not match its pattern.
std::optional<std::string> location_in_address(const std::string& address, const std::string& pattern,
                                               const std::string& node) {
  const std::vector<std::string> kinds = split_list(pattern, '.');
  const std::vector<std::string> names = split_list(address, '.');
  const auto groups = static_cast<std::ptrdiff_t>(kinds.size()) - 1;
  if (kinds.back() != "node" || std::ranges::count(kinds, "node") != 1 || names.size() < kinds.size()) return {};
  const bool has_all = std::ranges::none_of(kinds, &std::string::empty) &&
                       std::ranges::none_of(names, &std::string::empty) && address.find('/') == std::string::npos;
  const std::string last = fmt::format("{}", fmt::join(names.begin() + groups, names.end(), "."));
  if (!has_all || (!node.empty() && last != node)) return {};
  const auto path = parse_location(fmt::format("{}", fmt::join(names.begin(), names.begin() + groups, "/")));
  return path.ok() ? std::optional(*path) : std::nullopt;
}

HostLocation location_of_slurm(const Variables& variables, std::string_view host) {
  const std::string address = variables.text("SLURM_TOPOLOGY_ADDR");
  const std::string pattern = variables.text("SLURM_TOPOLOGY_ADDR_PATTERN");
  if (address.empty() || !is_on_slurm_node(variables, host)) return {{}, kRemedy};
  const auto path = location_in_address(address, pattern, variables.text("SLURMD_NODENAME"));
  if (!path) {
    std::string why = fmt::format("SLURM_TOPOLOGY_ADDR = {} does not match SLURM_TOPOLOGY_ADDR_PATTERN = {}; {}",
                                  in_quotes(address), in_quotes(pattern), kRemedy);
    log_info("the location of this host is not known: {}", why);
    return {{}, std::move(why)};
  }
  // Without a plugin for topologies, the address is the node alone.
  return path->empty() ? HostLocation{{}, kRemedy} : HostLocation{*path, "SLURM_TOPOLOGY_ADDR"};
}

}  // namespace

Result<std::string> parse_location(std::string_view text) {
  const auto refuse = [&](const std::string& why) {
    return Status(Code::invalid_argument, fmt::format("{}: {}", in_quotes(text), why));
  };
  const std::string_view path = text.substr(0, text.find_last_not_of('/') + 1);
  if (path.empty()) return std::string();
  const std::vector<std::string> names = split_list(path, '/');
  if (names.size() > kMostLocationNames) {
    return refuse(fmt::format("there are {} names; at most {} are allowed", names.size(), kMostLocationNames));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    if (name.empty()) return refuse(fmt::format("name {} is empty and a later one is not", i + 1));
    if (name.size() > kMostLocationName) {
      return refuse(fmt::format("name {} has {} bytes; at most {} are allowed", i + 1, name.size(), kMostLocationName));
    }
    if (!std::ranges::all_of(name, is_printable)) {
      return refuse(fmt::format("name {} has a space or a character that is not printable", i + 1));
    }
  }
  return std::string(path);
}

Result<HostLocation> find_location(const Environment& environment, const Config& config, std::string_view host_name) {
  if (config.topology == "off") return HostLocation{{}, "FARANDOLE_TOPOLOGY=off"};
  const auto path = parse_location(config.location);
  if (!path.ok()) {
    return Status(Code::invalid_argument,
                  fmt::format("FARANDOLE_LOCATION = {}; write the groups of this host, widest first, such as "
                              "zone-a/rack-3, or unset it",
                              path.status().text()));
  }
  if (!path->empty()) return HostLocation{*path, "FARANDOLE_LOCATION"};
  if (!config.topology.empty() && config.topology != "auto") return location_in_file(environment, config, host_name);
  return location_of_slurm(Variables(environment), host_name);
}

std::string describe_location(const Result<HostLocation>& location) {
  if (!location.ok()) return std::string(location.status().text());
  return location->path.empty() ? fmt::format("not known ({})", location->source)
                                : fmt::format("{} (from {})", location->path, location->source);
}

}  // namespace fdl
