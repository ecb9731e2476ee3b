// This header reports whether the node has EFA devices, as many as expected, and why they are not used.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "bootstrap/topology/nccl_plugin.h"
#include "contract/membership.h"
#include "system/rdma_devices.h"

namespace fdl {

struct EfaFacts {
  RdmaDevices devices;
  int expected = 0;           // 0: nothing is expected
  std::string expected_by;    // "FARANDOLE_EXPECT_EFA", or "p4d.24xlarge"
  bool is_demanded = false;   // by FARANDOLE_EXPECT_EFA
  bool device_nodes = false;  // /dev/infiniband/uverbs* exist
  std::string libfabric;      // its path; empty: not found
};
// Reads `config.sysfs_root` and `config.expect_efa`. `root` is prepended to /dev and /usr; only tests set it.
EfaFacts efa_facts(const Config& config, const std::string& root = {});

// Returns why EFA is not used: the first prerequisite that is missing, else `else_why`.
std::string why_no_efa(const EfaFacts& facts, std::string_view else_why);

// Whether a rank can use EFA, or where EFA is demanded, whether its NCCL can. Ranks exchange it as a number at the
// start.
enum class EfaAnswer : int8_t {
  not_asked,
  usable,
  no_class,
  no_device,
  foreign_devices,
  no_provider,
  too_few,
  no_nccl_plugin,
};

// This rank's answer from sysfs alone; `usable` still needs the provider's agreement.
EfaAnswer efa_answer(const EfaFacts& facts);
std::string_view text_of(EfaAnswer answer);

// The ranks that cannot use EFA, with their reasons: "rank 1 (host-b): it has no EFA device". Empty if all can.
std::string who_lacks_efa(std::span<const Member> members, std::span<const EfaAnswer> answers);

// The same for ranks whose NCCL finds no network plugin. Empty if there are none.
std::string who_lacks_nccl_plugin(std::span<const Member> members, std::span<const EfaAnswer> answers);

// Whether a list of transports ("shm,efa" of a user, "shm+efa" of a world) has EFA.
bool names_efa(std::string_view transports);

// "transport: shm+tcp; 4 of 4 EFA devices (p4d.24xlarge); EFA not used: ...". `else_why`: if nothing is missing here.
std::string transport_line(const EfaFacts& facts, std::string_view transports, std::string_view else_why);

// "nccl: its network plugin is /opt/amazon/...", or that it has none although the host has EFA, and what to do.
std::string nccl_line(const NcclPlugin& plugin);

// Logs the transport line, once a host: as a warning if FARANDOLE_EXPECT_EFA is not fulfilled, as information if there
// are devices or the instance type can have some, else not at all.
void log_efa(const EfaFacts& facts, std::string_view transports, std::string_view else_why);

}  // namespace fdl
