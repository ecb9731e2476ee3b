// Assemble chooses and connects the transports and collectives that join the members of a communicator. No other
// file chooses among them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "contract/device.h"
#include "contract/device_library.h"
#include "contract/levels.h"
#include "contract/membership.h"
#include "engine/communicator.h"

namespace fdl {

// Connects a communicator. Collective over its members, blocking. `suspect`, `watch` and `waiting` are as in
// Communicator::Parts.
// `find_library` is called at the first collective on devices. `table` and the library that it returns must outlive the
// communicator.
using FindDeviceLibrary = std::function<Result<DeviceLibrary*>()>;
Result<std::unique_ptr<Communicator>> assemble(const Membership& membership, SuspectHook suspect,
                                               const TuningTable* table = nullptr, FindDeviceLibrary find_library = {},
                                               std::function<void()> watch = {}, std::function<bool()> waiting = {});

// Memory that all ranks of this host map; null if they cannot, or if the transports exclude it. Collective over the
// members.
Result<std::shared_ptr<HostMemory>> assemble_memory(const Membership& membership);
// What communicators of this host are made in, for Membership::memory_group; null if its ranks cannot have it, or if
// the transports exclude it. Collective over the members.
Result<std::shared_ptr<MemoryGroup>> assemble_memory_group(const Membership& world);
// What makes connections when they are first used, in a large world; null where all are made at the set-up. It
// publishes in the exchange, and fetches from it until it is stopped.
Result<std::shared_ptr<TcpConnector>> assemble_connector(const Membership& world, std::unique_ptr<Exchange> exchange);
void stop_connector(TcpConnector& connector);

// Open an accelerator of this process, and the library that runs collectives on accelerators. UNSUPPORTED names what is
// missing and what to do. `kind`: DLPack's number.
Result<std::shared_ptr<Device>> open_device(int kind, int index, const Config& config);
Result<std::shared_ptr<DeviceLibrary>> open_device_library(const Config& config);

// Describes devices and library for a person to read, or why there are none. Opens both.
struct DeviceDescription {
  bool has_devices = false;
  bool has_library = false;
  std::string devices;  // "cuda: 8 devices, the first one cuda:0 (NVIDIA H100 80GB HBM3)"
  std::string library;
};
DeviceDescription describe_devices(const Config& config);

// What libfabric offers to this process. Opens it.
struct FabricDescription {
  bool is_there = false;
  bool has_efa = false;   // its provider efa has a device that the transport can use
  std::string library;    // "libfabric 1.17 (/usr/lib/libfabric.so.1)", or why there is none
  std::string providers;  // "tcp;ofi_rxm on eth0, lo; udp;ofi_rxd on eth0": those that the transport can use
  std::string efa;        // why has_efa is false
};
FabricDescription describe_fabric(const Config& config);

// A list of transports in which `auto` has become shared memory and EFA; unchanged if it has no `auto`, or this build
// lacks EFA.
std::string with_efa(const std::string& transports);
bool is_auto(const std::string& transports);

// Bytes that this process has given to libfabric.
uint64_t bytes_over_fabric();

// The transports that would join `rank` (an index of members) to the others: "shm", "tcp", "shm+tcp" or "none".
std::string transports_between(const std::vector<Member>& members, int rank, const Config& config);

// The transport that would join two ranks of different hosts, without what follows a colon: "tcp", "mpi", "ofi"; empty
// if none would.
std::string transport_between_hosts(const Config& config);

// The transports of this build: "shm yes, tcp yes, loopback yes".
std::string built_transports();

// The levels that ranks of one host would use if they are bound to these NUMA nodes (below 0: to none). `bytes` counts
// the whole vector, or the parts of all ranks together.
LevelAnswer levels_between(std::span<const int> node_of_rank, Collective collective, std::size_t bytes,
                           const Config& config);

// The members in the form in which choose() takes them. `locations`: see Membership; null if none is known.
GroupShape shape_of(const std::vector<Member>& members, const std::vector<std::string>* locations);

}  // namespace fdl
