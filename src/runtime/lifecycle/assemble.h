// Assemble: which transports and collectives join the members of a communicator; the only place that names them.
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

// Connects a communicator. Collective over its members. `suspect` and `watch` as in Communicator::Parts.
// `table` outlives the communicator, as does what `find_library` gives: it is asked at the first collective on devices.
using FindDeviceLibrary = std::function<Result<DeviceLibrary*>()>;
Result<std::unique_ptr<Communicator>> assemble(const Membership& membership, std::function<void()> suspect,
                                               const TuningTable* table = nullptr, FindDeviceLibrary find_library = {},
                                               std::function<void()> watch = {});

// Memory that all ranks of my host map; null where they cannot or may not. Collective over the members.
Result<std::shared_ptr<HostMemory>> assemble_memory(const Membership& membership);

// An accelerator of this process, and the library that runs collectives on such. UNSUPPORTED says what is missing and
// what to do. `kind`: DLPack's number.
Result<std::shared_ptr<Device>> open_device(int kind, int index, const Config& config);
Result<std::shared_ptr<DeviceLibrary>> open_device_library(const Config& config);

// What there is of the two, or why not, for people; opens them.
struct DeviceDescription {
  bool has_devices = false;
  bool has_library = false;
  std::string devices;  // "cuda: 8 devices, the first one cuda:0 (NVIDIA H100 80GB HBM3)"
  std::string library;
};
DeviceDescription describe_devices(const Config& config);

// "shm", "tcp", "shm+tcp": what would join these members.
std::string transports_between(const std::vector<Member>& members, int rank, const Config& config);

// "shm yes, tcp yes, loopback yes": what this build has.
std::string built_transports();

// What ranks of one host, bound to these NUMA nodes (below 0: to none), would do about them: `bytes` are those of the
// vector, or of all ranks' parts together.
LevelAnswer levels_between(std::span<const int> node_of_rank, Collective collective, std::size_t bytes,
                           const Config& config);

// The members as `choose` sees them.
GroupShape shape_of(const std::vector<Member>& members);

}  // namespace fdl
