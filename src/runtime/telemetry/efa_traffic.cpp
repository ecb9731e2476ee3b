// Counters belong to a device and not to a process: other ranks and other jobs of the host count too.
#include "runtime/telemetry/efa_traffic.h"

#include <fmt/format.h>

namespace fdl {

EfaTraffic::EfaTraffic(const Config& config) : sysfs_(config.sysfs_root) {
  for (const std::string& device : rdma_devices(sysfs_).efa) start_.emplace_back(device, efa_counters(sysfs_, device));
}

std::vector<std::pair<std::string, EfaCounters>> EfaTraffic::now() const {
  std::vector<std::pair<std::string, EfaCounters>> counters;
  for (const auto& [device, start] : start_) counters.emplace_back(device, efa_counters(sysfs_, device));
  return counters;
}

EfaCounters EfaTraffic::since_start() const {
  EfaCounters sum;
  for (const auto& [device, start] : start_) sum += efa_counters(sysfs_, device) - start;
  return sum;
}

bool EfaTraffic::is_flat(uint64_t bytes) const { return !start_.empty() && since_start().outgoing() < bytes / 2; }

std::string EfaTraffic::end_line(uint64_t bytes) const {
  if (start_.empty()) return {};
  const EfaCounters moved = since_start();
  std::string devices;
  for (const auto& [device, start] : start_) devices += (devices.empty() ? "" : ", ") + device;
  std::string line = fmt::format(
      "efa: this rank gave {} bytes to libfabric; {} counted {} sent, {} received, {} written and {} read remotely, by "
      "all processes of this host",
      bytes, devices, moved.sent_bytes, moved.received_bytes, moved.wrote_bytes, moved.read_bytes);
  if (is_flat(bytes)) line += ": less than this rank alone has sent, so the bytes took another way";
  return line;
}

}  // namespace fdl
