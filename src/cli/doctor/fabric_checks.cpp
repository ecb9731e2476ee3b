// Nothing here is bad on a host without EFA devices: most hosts have none.
#include "cli/doctor/fabric_checks.h"

#include <fmt/format.h>

#include <filesystem>

#include "bootstrap/topology/efa_instances.h"
#include "runtime/lifecycle/assemble.h"

namespace fdl {
namespace {

using Severity = Finding::Severity;

bool has_devices(const EfaFacts& facts) { return !facts.devices.efa.empty(); }

std::vector<Finding> check_libfabric(const EfaFacts& facts, const FabricDescription& fabric) {
  if (!fabric.is_there) {
    return {{has_devices(facts) ? Severity::bad : Severity::note, "libfabric", fabric.library,
             "the transports ofi and efa need it; the others do not"}};
  }
  std::vector<Finding> findings = {{Severity::good, "libfabric", fabric.library, ""}};
  findings.push_back({Severity::note, "providers",
                      fabric.providers.empty() ? "none that farandole can use" : fabric.providers,
                      "FARANDOLE_TRANSPORT=ofi:NAME takes one of them"});
  if (has_devices(facts)) {
    findings.push_back({fabric.has_efa ? Severity::good : Severity::bad, "provider efa",
                        fabric.has_efa ? "it offers this host's devices" : fabric.efa,
                        fabric.has_efa ? "" : "install AWS's EFA installer, or Debian 13's libfabric1, in the image"});
  }
  return findings;
}

Finding check_devices(const Config& config, const EfaFacts& facts, const FabricDescription& fabric) {
  const bool is_short = static_cast<int>(facts.devices.efa.size()) < facts.expected;
  const bool is_expected = facts.expected > 0 || has_devices(facts) || !facts.devices.others.empty();
  const std::string line = transport_line(facts, fabric.has_efa ? "efa" : "shm, tcp", fabric.efa);
  if (names_efa(config.transport) && (!fabric.has_efa || (facts.is_demanded && is_short))) {
    return {Severity::bad, "EFA", line,
            fmt::format("with FARANDOLE_TRANSPORT={} no job of several hosts starts here: the pod must request "
                        "vpc.amazonaws.com/efa, the launch template attach that many interfaces, and the image have "
                        "libfabric's provider efa; or set FARANDOLE_TRANSPORT=auto",
                        config.transport)};
  }
  return {is_expected && (is_short || !fabric.has_efa) ? Severity::warning
          : has_devices(facts)                         ? Severity::good
                                                       : Severity::note,
          "EFA", line, is_short ? "the launch template's interfaces, and the pod's vpc.amazonaws.com/efa" : ""};
}

Finding check_instance_type(const EfaFacts& facts) {
  if (facts.is_demanded) {
    return {Severity::note, "EFA expected", fmt::format("{}, by FARANDOLE_EXPECT_EFA", facts.expected), ""};
  }
  const std::string text =
      facts.expected > 0 ? fmt::format("{} for {} (table from {})", facts.expected, facts.expected_by, kEfaTableSource)
                         : fmt::format("none: {} is not in the table of instance types with EFA",
                                       facts.expected_by.empty() ? "the model of this machine" : facts.expected_by);
  return {Severity::note, "EFA expected", text, "FARANDOLE_EXPECT_EFA demands a number"};
}

Finding check_nodes(const std::string& root) {
  int nodes = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/dev/infiniband", none)) {
    nodes += entry.path().filename().string().starts_with("uverbs") ? 1 : 0;
  }
  return {nodes > 0 ? Severity::good : Severity::bad, "/dev/infiniband", fmt::format("{} device nodes", nodes),
          nodes > 0 ? "" : "the pod must request vpc.amazonaws.com/efa; a device plugin gives the nodes"};
}

Finding check_nccl_plugin() {
  const NcclPlugin plugin = find_nccl_plugin(Environment::of_process());
  if (!plugin.path.empty()) return {Severity::good, "NCCL's plugin", plugin.path, ""};
  return {Severity::warning, "NCCL's plugin", "none: " + plugin.why,
          std::string("without it NCCL's bytes between hosts do not go over EFA: ") + kNcclPluginRemedy};
}

// A security group cannot be read from inside: only its symptoms show.
Finding security_group() {
  return {Severity::note, "EFA packets", "a security group that stops them shows only when ranks connect",
          "errors EFA 15, EFA 4126 or 'did not answer over efa in time': allow all traffic of the group to itself, in "
          "ingress and in egress, and put all hosts into one subnet"};
}

Finding check_counters(const std::string& sysfs, const std::string& device) {
  const EfaCounters moved = efa_counters(sysfs, device);
  return {Severity::note, "EFA " + device,
          fmt::format("{} bytes sent, {} received, {} read, {} written since it was made", moved.sent_bytes,
                      moved.received_bytes, moved.read_bytes, moved.wrote_bytes),
          ""};
}

}  // namespace

std::vector<Finding> check_fabric(const Config& config, const EfaFacts& facts, const std::string& root) {
  const FabricDescription fabric = describe_fabric(config);
  std::vector<Finding> findings = check_libfabric(facts, fabric);
  findings.push_back(check_devices(config, facts, fabric));
  findings.push_back(check_instance_type(facts));
  if (!has_devices(facts)) return findings;
  findings.push_back(check_nodes(root));
  findings.push_back(security_group());
  findings.push_back(check_nccl_plugin());
  for (const std::string& device : facts.devices.efa) findings.push_back(check_counters(config.sysfs_root, device));
  return findings;
}

}  // namespace fdl
