// This file reads EFA devices and counters from sysfs.
#include "bootstrap/topology/efa.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/log.h"

namespace fdl {
namespace {

namespace files = std::filesystem;

constexpr std::string_view kAmazon = "0x1d0f";

std::string word_in(const files::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// Identifies EFA by the driver. If the pod has no access to the driver's link, the vendor decides, and then the usual
// names.
bool is_efa(const files::path& device) {
  std::error_code none;
  const files::path driver = files::read_symlink(device / "device" / "driver", none);
  if (!none) return driver.filename() == "efa";
  if (const std::string vendor = word_in(device / "device" / "vendor"); !vendor.empty()) return vendor == kAmazon;
  const std::string name = device.filename();
  return name.starts_with("efa_") || name.starts_with("rdmap");
}

uint64_t counter(const files::path& device, const char* name) {
  std::ifstream file(device / "ports" / "1" / "hw_counters" / name);
  uint64_t value = 0;
  file >> value;
  return file ? value : 0;
}

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

RdmaDevices rdma_devices(const std::string& sysfs) {
  RdmaDevices found;
  std::error_code none;
  const files::path folder = sysfs + "/class/infiniband";
  found.has_class = files::exists(folder, none);
  for (const auto& entry : files::directory_iterator(folder, none)) {
    (is_efa(entry.path()) ? found.efa : found.others).push_back(entry.path().filename());
  }
  std::sort(found.efa.begin(), found.efa.end());
  std::sort(found.others.begin(), found.others.end());
  return found;
}

EfaCounters efa_counters(const std::string& sysfs, std::string_view device) {
  const files::path path = files::path(sysfs + "/class/infiniband") / device;
  return {counter(path, "tx_bytes"), counter(path, "rx_bytes"), counter(path, "rdma_read_bytes"),
          counter(path, "rdma_write_bytes")};
}

EfaFacts efa_facts(const std::string& sysfs, int expected, const std::string& root) {
  return {rdma_devices(sysfs), expected, has_device_nodes(root), find_libfabric(root)};
}

EfaFacts efa_facts(const Environment& environment) {
  const std::string expected = environment.get("FARANDOLE_EXPECT_EFA").value_or("0");
  return efa_facts(environment.get("FARANDOLE_SYSFS_ROOT").value_or("/sys"),
                   static_cast<int>(std::strtol(expected.c_str(), nullptr, 10)));
}

void log_efa(const Environment& environment, std::string_view transports) {
  const EfaFacts facts = efa_facts(environment);
  const bool any = !facts.devices.efa.empty() || !facts.devices.others.empty();
  if (facts.expected == 0 && !any) return;
  log_at(facts.expected > 0 ? LogLevel::warning : LogLevel::info, "{}", transport_line(facts, transports));
}

std::string why_no_efa(const EfaFacts& facts) {
  const std::vector<std::string>& efa = facts.devices.efa;
  if (!facts.devices.has_class) {
    return "there is no /sys/class/infiniband: this node type has no EFA, or its driver is not loaded";
  }
  if (efa.empty() && facts.devices.others.empty()) {
    return "no device: the pod must request vpc.amazonaws.com/efa, and the device plugin must run on this node";
  }
  if (efa.empty()) {
    return fmt::format(
        "{} is not an EFA device: a hostPath mount of /dev/infiniband shows foreign devices; request "
        "vpc.amazonaws.com/efa instead",
        fmt::join(facts.devices.others, ", "));
  }
  if (!facts.devices.others.empty()) {
    return fmt::format(
        "{} and {} are mixed: a hostPath mount of /dev/infiniband shows foreign devices; request "
        "vpc.amazonaws.com/efa instead",
        fmt::join(efa, ", "), fmt::join(facts.devices.others, ", "));
  }
  if (!facts.device_nodes) {
    return fmt::format("{} is on the node, but /dev/infiniband is not in this pod: request vpc.amazonaws.com/efa",
                       fmt::join(efa, ", "));
  }
  if (static_cast<int>(efa.size()) < facts.expected) {
    return fmt::format(
        "{} of the {} devices that FARANDOLE_EXPECT_EFA counts: request equals limit for "
        "vpc.amazonaws.com/efa? the launch template's interfaces?",
        efa.size(), facts.expected);
  }
  if (facts.libfabric.empty())
    return "libfabric.so.1 is not in this image (Debian: libfabric1, from trixie on with efa)";
  return "FARANDOLE_TRANSPORT does not name it; set FARANDOLE_TRANSPORT=shm,efa";
}

std::string transport_line(const EfaFacts& facts, std::string_view transports) {
  std::string text = fmt::format("transport: {}", transports);
  if (!facts.devices.efa.empty() || facts.expected > 0) {
    text += fmt::format("; {} of {} EFA devices", facts.devices.efa.size(),
                        std::max<std::size_t>(facts.devices.efa.size(), static_cast<std::size_t>(facts.expected)));
  }
  if (!facts.libfabric.empty()) text += "; " + facts.libfabric;
  if (transports.find("efa") != std::string_view::npos) return text;
  return text + "; EFA not used: " + why_no_efa(facts);
}

}  // namespace fdl
