// DeviceMemory frees one allocation with the function of its kind.
#include "engine/device/device_memory.h"

#include <utility>

namespace fdl {

Result<DeviceMemory> DeviceMemory::of_device(Device& device, std::size_t bytes) {
  FDL_ASSIGN_OR_RETURN(void* memory, device.allocate(bytes));
  return DeviceMemory(device, memory, bytes, false);
}

Result<DeviceMemory> DeviceMemory::of_host(Device& device, std::size_t bytes) {
  FDL_ASSIGN_OR_RETURN(void* memory, device.allocate_pinned(bytes));
  return DeviceMemory(device, memory, bytes, true);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  device_ = other.device_;
  memory_ = std::exchange(other.memory_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  pinned_ = other.pinned_;
  return *this;
}

void DeviceMemory::give_back() {
  void* memory = std::exchange(memory_, nullptr);
  bytes_ = 0;
  if (memory == nullptr) return;
  pinned_ ? device_->release_pinned(memory) : device_->release(memory);
}

}  // namespace fdl
