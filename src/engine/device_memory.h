// DeviceMemory: memory in which a device works: its own or, where it has no more, pinned memory of the host, which it
// reaches slowly: what the ranks have agreed upon goes on.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "contract/device.h"

namespace fdl {

// What is queued when it ends may still use it. The device outlives it.
class DeviceMemory {
 public:
  // Of a fusion buffer: one line says so where it is the host's.
  static Result<DeviceMemory> take(Device& device, std::size_t bytes);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { give_back(); }

  void* get() const { return memory_; }
  std::size_t bytes() const { return bytes_; }
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
