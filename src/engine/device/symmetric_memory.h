// SymmetricMemory owns device memory for a caller's tensors. It comes from the library that runs the collectives of the
// group, or from the device.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "contract/device.h"
#include "contract/device_library.h"
#include "engine/device/completion_notifier.h"

namespace fdl {

// Its holder and, while the library has it registered, the group share it. It is destroyed with the last reference,
// once the work that was queued on the holder's stream before release() has run.
class SymmetricMemory {
 public:
  // Allocates from the library if there is one and it has memory, otherwise from the device. Both outlive the memory,
  // and so does the stream.
  static Result<std::shared_ptr<SymmetricMemory>> take(Device& device, DeviceLibrary* library, Stream stream,
                                                       std::size_t bytes);
  ~SymmetricMemory();
  SymmetricMemory(const SymmetricMemory&) = delete;
  SymmetricMemory& operator=(const SymmetricMemory&) = delete;

  void* get() const { return memory_; }
  std::size_t bytes() const { return bytes_; }
  bool is_librarys() const { return library_ != nullptr; }

  // The holder has queued its last use. May be called from any thread, once.
  void release();
  // For the group: whether release() was called, and whether the work queued before it has run.
  bool is_released() const { return released_.load(std::memory_order_acquire); }
  bool is_unused() const;

 private:
  SymmetricMemory(Device& device, DeviceLibrary* library, Stream stream, void* memory, std::size_t bytes,
                  DeviceEvent last_use)
      : device_(device), library_(library), stream_(stream), memory_(memory), bytes_(bytes), last_use_(last_use) {}
  bool wait_through() const;

  Device& device_;
  DeviceLibrary* const library_;
  const Stream stream_;
  void* const memory_;
  const std::size_t bytes_;
  const DeviceEvent last_use_;
  std::optional<CompletionNotifier> notifier_;  // rings after the last use; set by release()
  std::atomic<bool> released_{false};
};

// A symmetric allocation that all ranks of a group request together, and its result: memory on all ranks or on none.
struct SymmetricAllocation {
  std::size_t bytes = 0;
  Stream stream = nullptr;
  std::shared_ptr<SymmetricMemory> memory = nullptr;  // null: refused
  Status refusal = {};                                // the same on all ranks
  int64_t number = -1;                                // identifies the allocation in its group, the same on all ranks
  bool is_registered = false;                         // the library has registered it on all ranks
};

}  // namespace fdl
