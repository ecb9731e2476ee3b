// This header reports the EFA devices of the node, their counters, and the reason why they are not used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"

namespace fdl {

struct RdmaDevices {
  bool has_class = false;           // <sysfs>/class/infiniband exists
  std::vector<std::string> efa;     // sorted
  std::vector<std::string> others;  // of other kinds; a hostPath mount of /dev/infiniband shows all of them
};

// `sysfs`: usually "/sys".
RdmaDevices rdma_devices(const std::string& sysfs);

struct EfaCounters {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t read_bytes = 0;   // by remote reads
  uint64_t wrote_bytes = 0;  // by remote writes
};
// Returns the counters since the device was created; a counter that cannot be read is 0.
EfaCounters efa_counters(const std::string& sysfs, std::string_view device);

struct EfaFacts {
  RdmaDevices devices;
  int expected = 0;           // FARANDOLE_EXPECT_EFA: the number that the manifest requests
  bool device_nodes = false;  // /dev/infiniband/uverbs* exist
  std::string libfabric;      // its path; empty: not found
};
// `root` is prepended to /dev and /usr; only tests set it.
EfaFacts efa_facts(const std::string& sysfs, int expected, const std::string& root = {});

// Returns why EFA is not used: the first prerequisite that is missing, else that no setting names it.
std::string why_no_efa(const EfaFacts& facts);

// Reads FARANDOLE_SYSFS_ROOT and FARANDOLE_EXPECT_EFA.
EfaFacts efa_facts(const Environment& environment);

// Logs the transport line: as a warning if EFA was expected, as information if devices exist, else not at all. Called
// once per node at start.
void log_efa(const Environment& environment, std::string_view transports);

// "transport: shm+efa; 4 of 4 EFA devices; /opt/.../libfabric.so.1", or "transport: tcp; ...; EFA not used: ..."
std::string transport_line(const EfaFacts& facts, std::string_view transports);

}  // namespace fdl
