// This header offers NCCL as a DeviceLibrary for the runtime, and a one-line description of it for people.
#pragma once

#include <memory>
#include <string>

#include "base/config.h"
#include "contract/device_library.h"
#include "transports/nccl/nccl_communicator.h"

namespace fdl {

// `multi_rank_gpu_enabled`: whether NCCL_MULTI_RANK_GPU_ENABLE is set to anything but 0 for this process.
// UNSUPPORTED, with the reason, if there is no NCCL or none that can be used.
Result<std::shared_ptr<DeviceLibrary>> open_nccl(const Config& config, bool multi_rank_gpu_enabled);

// "NCCL 2.30.7 (/usr/lib/libnccl.so.2, the system's): own_memory, registration, ...", or the reason why there is none.
std::string describe_nccl(const Config& config);

// Why these ranks cannot use NCCL together, or OK. Implements DeviceLibrary::conflict(). Pure.
Status nccl_result(std::span<const DeviceFacts> ranks, std::span<const Member> members);

}  // namespace fdl
