// The reasons come in the order in which a user would look for them.
#include "bootstrap/topology/efa.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/log.h"
#include "base/name_list.h"
#include "bootstrap/topology/efa_instances.h"

namespace fdl {
namespace {

namespace files = std::filesystem;

std::string find_libfabric(const std::string& root) {
  for (const char* folder : {"/opt/amazon/efa/lib", "/opt/amazon/efa/lib64", "/usr/local/lib", "/usr/lib64",
                             "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"}) {
    const std::string path = root + folder + "/libfabric.so.1";
    std::error_code none;
    if (files::exists(path, none)) return path;
  }
  return {};
}

bool has_device_nodes(const std::string& root) {
  std::error_code none;
  for (const auto& entry : files::directory_iterator(root + "/dev/infiniband", none)) {
    if (entry.path().filename().string().starts_with("uverbs")) return true;
  }
  return false;
}

}  // namespace

EfaFacts efa_facts(const Config& config, const std::string& root) {
  EfaFacts facts;
  facts.devices = rdma_devices(config.sysfs_root);
  facts.device_nodes = has_device_nodes(root);
  facts.libfabric = find_libfabric(root);
  facts.is_demanded = config.expect_efa > 0;
  if (facts.is_demanded) {
    facts.expected = static_cast<int>(config.expect_efa);
    facts.expected_by = "FARANDOLE_EXPECT_EFA";
    return facts;
  }
  facts.expected_by = machine_model(config.sysfs_root);
  facts.expected = efa_devices_of(facts.expected_by);
  return facts;
}

std::string why_no_efa(const EfaFacts& facts, std::string_view else_why) {
  const std::vector<std::string>& efa = facts.devices.efa;
  const std::vector<std::string>& others = facts.devices.others;
  if (!facts.devices.has_class) {
    return "there is no /sys/class/infiniband: this node type has no EFA, or its driver is not loaded";
  }
  if (efa.empty() && others.empty()) {
    return "no device: the pod must request vpc.amazonaws.com/efa, and the device plugin must run on this node";
  }
  if (efa.empty() || !others.empty()) {
    return fmt::format(
        "{} {}: a hostPath mount of /dev/infiniband shows foreign devices; request vpc.amazonaws.com/efa instead",
        efa.empty() ? fmt::format("{}", fmt::join(others, ", "))
                    : fmt::format("{} and {}", fmt::join(efa, ", "), fmt::join(others, ", ")),
        efa.empty() ? "is not an EFA device" : "are mixed");
  }
  if (!facts.device_nodes) {
    return fmt::format("{} is on the node, but /dev/infiniband is not in this pod: request vpc.amazonaws.com/efa",
                       fmt::join(efa, ", "));
  }
  if (facts.is_demanded && static_cast<int>(efa.size()) < facts.expected) {
    return fmt::format(
        "{} of the {} devices that {} counts: request equals limit for vpc.amazonaws.com/efa? the launch template's "
        "interfaces?",
        efa.size(), facts.expected, facts.expected_by);
  }
  if (facts.libfabric.empty())
    return "libfabric.so.1 is not in this image (Debian: libfabric1, from trixie on with efa)";
  return std::string(else_why);
}

EfaAnswer efa_answer(const EfaFacts& facts) {
  if (!facts.devices.has_class) return EfaAnswer::no_class;
  if (facts.devices.efa.empty()) {
    return facts.devices.others.empty() ? EfaAnswer::no_device : EfaAnswer::foreign_devices;
  }
  if (facts.is_demanded && static_cast<int>(facts.devices.efa.size()) < facts.expected) return EfaAnswer::too_few;
  return EfaAnswer::usable;
}

std::string_view text_of(EfaAnswer answer) {
  switch (answer) {
    case EfaAnswer::usable:
      return "it can use EFA";
    case EfaAnswer::no_class:
      return "there is no /sys/class/infiniband";
    case EfaAnswer::no_device:
      return "it has no EFA device";
    case EfaAnswer::foreign_devices:
      return "its RDMA devices are not EFA's";
    case EfaAnswer::no_provider:
      return "its libfabric offers no provider efa";
    case EfaAnswer::too_few:
      return "it has fewer devices than FARANDOLE_EXPECT_EFA";
    case EfaAnswer::no_nccl_plugin:
      return "its NCCL finds no network plugin";
    case EfaAnswer::not_asked:
      break;
  }
  return "it does not take part in the choice";
}

namespace {

// The names of the ranks whose answer `is_lack` accepts, for each of these answers.
std::string ranks_by_answer(std::span<const Member> members, std::span<const EfaAnswer> answers,
                            bool (*is_lack)(EfaAnswer)) {
  constexpr std::size_t kNamed = 8;
  std::map<EfaAnswer, std::vector<std::string>> lacking;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (is_lack(answers[i])) lacking[answers[i]].push_back(name_of(members[i]));
  }
  std::string text;
  for (const auto& [answer, names] : lacking) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name_list(names, kNamed), text_of(answer));
  }
  return text;
}

}  // namespace

std::string who_lacks_efa(std::span<const Member> members, std::span<const EfaAnswer> answers) {
  return ranks_by_answer(members, answers, [](EfaAnswer answer) { return answer != EfaAnswer::usable; });
}

std::string who_lacks_nccl_plugin(std::span<const Member> members, std::span<const EfaAnswer> answers) {
  return ranks_by_answer(members, answers, [](EfaAnswer answer) { return answer == EfaAnswer::no_nccl_plugin; });
}

bool names_efa(std::string_view transports) { return transports.find("efa") != std::string_view::npos; }

std::string transport_line(const EfaFacts& facts, std::string_view transports, std::string_view else_why) {
  std::string text = fmt::format("transport: {}", transports);
  if (!facts.devices.efa.empty() || facts.expected > 0) {
    text += fmt::format("; {} of {} EFA devices", facts.devices.efa.size(),
                        std::max<std::size_t>(facts.devices.efa.size(), static_cast<std::size_t>(facts.expected)));
    if (facts.expected > 0) text += fmt::format(" ({})", facts.expected_by);
  }
  if (names_efa(transports)) return text;
  if (!facts.libfabric.empty()) text += "; " + facts.libfabric;
  return text + "; EFA not used: " + why_no_efa(facts, else_why);
}

std::string nccl_line(const NcclPlugin& plugin) {
  if (!plugin.path.empty()) return "nccl: its network plugin is " + plugin.path;
  return "nccl: no network plugin, so NCCL's bytes between hosts do not go over EFA (" + plugin.why + "); " +
         kNcclPluginRemedy;
}

void log_efa(const EfaFacts& facts, std::string_view transports, std::string_view else_why) {
  const bool any = !facts.devices.efa.empty() || !facts.devices.others.empty();
  if (facts.expected == 0 && !any) return;
  const bool is_used = names_efa(transports);
  const bool is_short = static_cast<int>(facts.devices.efa.size()) < facts.expected;
  log_at(facts.is_demanded && (is_short || !is_used) ? LogLevel::warning : LogLevel::info, "{}",
         transport_line(facts, transports, else_why));
}

}  // namespace fdl
