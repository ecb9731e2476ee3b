// CUDA devices: opens one behind contract/device.h. The only header of this room that others include.
#pragma once

#include <memory>

#include "base/config.h"
#include "base/status.h"
#include "contract/device.h"

namespace fdl {

// How many devices this process sees; UNSUPPORTED, with what to install, where there is no driver. Opens the driver.
Result<int> count_cuda_devices(const Config& config);

// The device of this number, in the context that frameworks use (the primary one). All who open it share it, with the
// memory that it keeps, and it ends with the last of them. Any thread.
Result<std::shared_ptr<Device>> open_cuda_device(int index, const Config& config);

}  // namespace fdl
