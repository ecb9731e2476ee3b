// EfaTraffic compares the bytes that this process gave to libfabric with what the EFA devices of the host have counted.
//
// Some faults leave a job running over another network with the devices idle: their counters then stay flat.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "system/rdma_devices.h"

namespace fdl {

class EfaTraffic {
 public:
  // Reads the counters of all EFA devices of the host. Without devices all functions do nothing.
  explicit EfaTraffic(const Config& config);

  // The counters of each device now. Any thread may call it.
  std::vector<std::pair<std::string, EfaCounters>> now() const;
  // What all devices have counted since this object was made, by all processes of the host.
  EfaCounters since_start() const;

  // The line at the end: "efa: this rank gave 64 MiB to libfabric; ...". Empty if there are no devices.
  std::string end_line(uint64_t bytes) const;
  // Whether the counters grew by less than half of what this rank alone has sent.
  bool is_flat(uint64_t bytes) const;

 private:
  const std::string sysfs_;
  std::vector<std::pair<std::string, EfaCounters>> start_;
};

}  // namespace fdl
