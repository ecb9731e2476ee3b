// This header opens CUDA devices behind contract/device.h. It is the only header of this module that others include.
#pragma once

#include <memory>

#include "base/config.h"
#include "base/status.h"
#include "contract/device.h"

namespace fdl {

// The number of devices that are visible to this process. Opens the driver; UNSUPPORTED, with what to install, if there
// is none.
Result<int> count_cuda_devices(const Config& config);

// Opens the device with this number, in its primary context, which frameworks use, too. All callers share the device
// and its cached memory; it ends with its last owner. Any thread may call.
Result<std::shared_ptr<Device>> open_cuda_device(int index, const Config& config);

}  // namespace fdl
