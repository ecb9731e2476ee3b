// EFA: which devices of this kind the node has, what they have moved, and the line that says why they are not used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"

namespace fdl {

struct RdmaDevices {
  bool has_class = false;           // <sysfs>/class/infiniband is there
  std::vector<std::string> efa;     // sorted
  std::vector<std::string> others;  // of another kind: a hostPath mount of /dev/infiniband shows them all
};

// `sysfs`: usually "/sys".
RdmaDevices rdma_devices(const std::string& sysfs);

struct EfaCounters {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t read_bytes = 0;   // by remote reads
  uint64_t wrote_bytes = 0;  // by remote writes
};
// Since the device was made; what cannot be read counts as nothing.
EfaCounters efa_counters(const std::string& sysfs, std::string_view device);

struct EfaFacts {
  RdmaDevices devices;
  int expected = 0;           // FARANDOLE_EXPECT_EFA: what the manifest asked for
  bool device_nodes = false;  // /dev/infiniband/uverbs* are there
  std::string libfabric;      // its path; empty: not found
};
// `root`: in front of /dev and /usr, empty but in tests.
EfaFacts efa_facts(const std::string& sysfs, int expected, const std::string& root = {});

// Why EFA is not used, from the first thing that is missing on; of a version without that transport never empty.
std::string why_no_efa(const EfaFacts& facts);

// What this process goes by: FARANDOLE_SYSFS_ROOT, FARANDOLE_EXPECT_EFA.
EfaFacts efa_facts(const Environment& environment);

// Once a node at the start: a warning where EFA was expected, information where devices are, else nothing.
void log_efa(const Environment& environment, std::string_view transports);

// "transport: tcp eth0 10.1.2.3; EFA not used: ..."
std::string transport_line(const EfaFacts& facts, std::string_view transports);

}  // namespace fdl
