// This header lists the RDMA devices of the node, and reads their counters and places, from sysfs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fdl {

struct RdmaDevices {
  bool has_class = false;           // <sysfs>/class/infiniband exists
  std::vector<std::string> efa;     // sorted
  std::vector<std::string> others;  // of other kinds; a hostPath mount of /dev/infiniband shows all of them
};

// `sysfs`: usually "/sys".
RdmaDevices rdma_devices(const std::string& sysfs);

// What a device has moved since its driver was loaded; a counter that cannot be read is 0.
struct EfaCounters {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t read_bytes = 0;   // by remote reads
  uint64_t wrote_bytes = 0;  // by remote writes

  uint64_t outgoing() const { return sent_bytes + wrote_bytes; }
  EfaCounters& operator+=(const EfaCounters& other);
  EfaCounters operator-(const EfaCounters& before) const;
};
EfaCounters efa_counters(const std::string& sysfs, std::string_view device);

// The NUMA node of a device; -1 if the system does not report one.
int numa_node_of_device(const std::string& sysfs, std::string_view device);

// The name of the machine's model, which on EC2 is the instance type ("p5.48xlarge"); empty if it cannot be read.
std::string machine_model(const std::string& sysfs);

}  // namespace fdl
