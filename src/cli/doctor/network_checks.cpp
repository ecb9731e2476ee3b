// Makes each check of the network once, with a short timeout.
#include "cli/doctor/network_checks.h"

#include <fmt/format.h>

#include <optional>
#include <set>

#include "bootstrap/launchers/launchers.h"
#include "bootstrap/launchers/node_launchers.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "cli/open_ports.h"
#include "system/addresses.h"
#include "system/socket.h"

namespace fdl {
namespace {

using Severity = Finding::Severity;

constexpr double kTimeout_s = 3;
constexpr int kMostNames = 64;  // so many peers' names are looked up at most

Finding check_identity(const Environment& environment, const Config& config, const Platform& platform) {
  const Explanation explanation = explain_identity(environment, config, platform);
  if (explanation.identity.ok()) return {Severity::good, "rank", explanation.identity->line(), ""};
  if (!explanation.node.empty()) return {Severity::good, "node", explanation.node, "start with `farandole run`"};
  return {Severity::bad, "rank", explanation.identity.status().text(),
          "`farandole env --explain` lists what was tried"};
}

std::vector<Finding> check_interfaces(const Config& config) {
  std::vector<Finding> findings;
  for (const InterfaceReport& one : describe_interfaces(config.interfaces)) {
    findings.push_back({one.is_taken ? Severity::good : Severity::note, "interface " + one.name,
                        fmt::format("{}: {}", one.address, one.is_taken ? "offered to peers" : one.why_not), ""});
  }
  const auto usable = addresses_of_interfaces(config.interfaces, 0, true);
  if (!usable.ok()) findings.push_back({Severity::bad, "interfaces", usable.status().text(), "set FARANDOLE_IFACE"});
  return findings;
}

// `is_needed`: the name is that of the rendezvous. The names of other peers may appear later.
Finding check_name(const std::string& name, bool is_needed) {
  const auto addresses = resolve(name, 1);
  if (!addresses.ok()) {
    return {is_needed ? Severity::bad : Severity::warning, "name " + name, addresses.status().text(),
            "a headless Service with publishNotReadyAddresses: true and the pods' subdomain make it; it appears some "
            "seconds after its pod"};
  }
  std::string text;
  for (const Address& address : *addresses) {
    text += (text.empty() ? "" : ", ") + address.text.substr(0, address.text.rfind(':'));
  }
  return {Severity::good, "name " + name, text, ""};
}

// A refused connection shows that the host is reachable; a timeout hints at a closed port.
Finding check_rendezvous(const Rendezvous::Endpoint& endpoint) {
  const std::string what = fmt::format("rendezvous {}", host_and_port(endpoint.host, endpoint.first_port));
  const auto addresses = resolve(endpoint.host, endpoint.first_port);
  if (!addresses.ok()) return {Severity::bad, what, addresses.status().text(), "see the name above"};
  const auto fd = connect_any(*addresses, Deadline::after_seconds(kTimeout_s));
  if (fd.ok()) return {Severity::good, what, "a process listens there", ""};
  const std::string why = fd.status().text();
  if (why.find("refused") != std::string::npos) {
    return {Severity::note, what, "the host answers, but no process listens there yet", ""};
  }
  return {Severity::bad, what, why,
          "is the port closed by a NetworkPolicy or security group? Both need ingress and egress between the pods"};
}

// The rendezvous comes from the configuration, else from the node's row in the table of launchers.
std::vector<Finding> check_peers(const Environment& environment, const Config& config, const Platform& platform) {
  const auto node = find_node(Variables(environment), platform);
  std::set<std::string> names;
  std::optional<Rendezvous> rendezvous;
  std::string where = config.rendezvous;
  if (where.empty() && node.ok() && *node) {
    const auto place = place_of_node_zero(**node, static_cast<int>(config.port_base));
    if (place.ok()) where = *place;
  }
  if (const auto parsed = parse_rendezvous(where); parsed.ok()) rendezvous = *parsed;
  if (node.ok() && *node) {
    for (int index = 0; index < std::min((*node)->node_count, kMostNames); ++index) {
      const std::string pod = pod_name(**node, index);
      if (!pod.empty() && !platform.domain.empty()) names.insert(with_domain(pod, platform));
    }
  }
  std::vector<Finding> findings;
  if (rendezvous) {
    for (const Rendezvous::Endpoint& endpoint : rendezvous->endpoints) {
      findings.push_back(check_name(endpoint.host, true));
      names.erase(endpoint.host);
    }
  }
  for (const std::string& name : names) findings.push_back(check_name(name, false));
  if (rendezvous) {
    for (const Rendezvous::Endpoint& endpoint : rendezvous->endpoints) findings.push_back(check_rendezvous(endpoint));
  }
  return findings;
}

// Tries to listen on every port of the range. A warning follows when more than half of them are taken.
Finding check_ports(const Config& config) {
  if (config.port_base == 0) {
    return {Severity::note, "ports", "ranks listen on any free port",
            "FARANDOLE_PORT_BASE=29500 keeps to a range that a NetworkPolicy can open"};
  }
  const int first = static_cast<int>(config.port_base);
  const int last = first + static_cast<int>(config.port_count) - 1;
  int taken = 0;
  for (int port = first; port <= last; ++port) taken += listen_tcp("", port).ok() ? 0 : 1;
  const std::string text = fmt::format("{} to {}, of which {} taken", first, last, taken);
  if (taken * 2 <= last - first) return {Severity::good, "ports", text, ""};
  return {Severity::warning, "ports", text, "on the host's network pods share ports: raise FARANDOLE_PORT_COUNT"};
}

}  // namespace

std::vector<Finding> check_network(const Environment& environment, const Config& config, const Platform& platform) {
  std::vector<Finding> findings = {check_identity(environment, config, platform)};
  for (auto& more : {check_interfaces(config), check_peers(environment, config, platform)}) {
    findings.insert(findings.end(), more.begin(), more.end());
  }
  findings.push_back(check_ports(config));
  findings.push_back({Severity::note, "listeners", describe_ports(config, environment), ""});
  return findings;
}

}  // namespace fdl
