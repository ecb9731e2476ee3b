// The tree is read anew at each call: devices come and go with pods.
#include "system/rdma_devices.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

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

files::path path_of(const std::string& sysfs, std::string_view device) {
  return files::path(sysfs) / "class" / "infiniband" / device;
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

EfaCounters& EfaCounters::operator+=(const EfaCounters& other) {
  sent_bytes += other.sent_bytes;
  received_bytes += other.received_bytes;
  read_bytes += other.read_bytes;
  wrote_bytes += other.wrote_bytes;
  return *this;
}

// A counter that is smaller than before was reset: then all of it is new.
EfaCounters EfaCounters::operator-(const EfaCounters& before) const {
  const auto grown = [](uint64_t now, uint64_t then) { return now >= then ? now - then : now; };
  return {grown(sent_bytes, before.sent_bytes), grown(received_bytes, before.received_bytes),
          grown(read_bytes, before.read_bytes), grown(wrote_bytes, before.wrote_bytes)};
}

EfaCounters efa_counters(const std::string& sysfs, std::string_view device) {
  const files::path path = path_of(sysfs, device);
  return {counter(path, "tx_bytes"), counter(path, "rx_bytes"), counter(path, "rdma_read_bytes"),
          counter(path, "rdma_write_bytes")};
}

int numa_node_of_device(const std::string& sysfs, std::string_view device) {
  std::ifstream file(path_of(sysfs, device) / "device" / "numa_node");
  int node = -1;
  file >> node;
  return file ? node : -1;
}

std::string machine_model(const std::string& sysfs) {
  return word_in(files::path(sysfs) / "devices" / "virtual" / "dmi" / "id" / "product_name");
}

}  // namespace fdl
