// DeviceMemory owns memory in which a device works: its own, or pinned host memory, which the device reaches slowly.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "contract/device.h"

namespace fdl {

// Work that is queued when the object is destroyed may still use the memory. The device outlives the object.
class DeviceMemory {
 public:
  static Result<DeviceMemory> of_device(Device& device, std::size_t bytes);
  static Result<DeviceMemory> of_host(Device& device, std::size_t bytes);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { give_back(); }

  void* get() const { return memory_; }
  std::size_t bytes() const { return bytes_; }
  bool is_hosts() const { return memory_ != nullptr && pinned_; }
  void give_back();

 private:
  DeviceMemory(Device& device, void* memory, std::size_t bytes, bool pinned)
      : device_(&device), memory_(memory), bytes_(bytes), pinned_(pinned) {}

  Device* device_ = nullptr;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  bool pinned_ = false;
};

}  // namespace fdl
