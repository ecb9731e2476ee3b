// DeviceMemory: one allocation, and which of the two kinds it is.
#include "engine/device_memory.h"

#include <string>
#include <utility>

#include "base/log.h"

namespace fdl {

Result<DeviceMemory> DeviceMemory::take(Device& device, std::size_t bytes) {
  auto memory = device.allocate(bytes);
  const bool pinned = !memory.ok() && memory.status().code() == Code::resource;
  if (pinned) {
    log_warning(
        "{}; the fusion buffer of {} bytes is in memory of the host, which is slow: lower FARANDOLE_FUSION_BYTES",
        memory.status().text(), bytes);
    memory = device.allocate_pinned(bytes);
  }
  if (!memory.ok()) {
    return memory.status().while_doing("growing a fusion buffer to " + std::to_string(bytes) +
                                       " bytes; lower FARANDOLE_FUSION_BYTES");
  }
  return DeviceMemory(device, *memory, bytes, pinned);
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
