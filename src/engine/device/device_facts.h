// device_facts() collects what other ranks need to know of this rank's device before they use the library with it.
#pragma once

#include <functional>

#include "base/config.h"
#include "contract/device_library.h"

namespace fdl {

// Does not load the library if the configuration excludes it. `library` is set if this rank has one.
DeviceFacts device_facts(Device& device, const Member& me, const Config& config,
                         const std::function<Result<DeviceLibrary*>()>& find, DeviceLibrary*& library);

}  // namespace fdl
