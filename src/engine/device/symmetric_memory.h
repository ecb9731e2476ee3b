// SymmetricMemory: memory of a device that a caller holds as long as he likes: of the library that runs his group's
// collectives there, as that likes it best, or of the device alone.
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

// Shared by its holder and by the group while the library knows it; it ends with the later of them, once what its
// holder's stream was given until he let go has run.
class SymmetricMemory {
 public:
  // Of the library, where there is one and it has some; else of the device. Both outlive it, as does the stream.
  static Result<std::shared_ptr<SymmetricMemory>> take(Device& device, DeviceLibrary* library, Stream stream,
                                                       std::size_t bytes);
  ~SymmetricMemory();
  SymmetricMemory(const SymmetricMemory&) = delete;
  SymmetricMemory& operator=(const SymmetricMemory&) = delete;

  void* get() const { return memory_; }
  std::size_t bytes() const { return bytes_; }
  bool is_librarys() const { return library_ != nullptr; }

  // The holder's last word, from any thread.
  void let_go();
  // Whether he has said it, and then whether his stream is through; for the group.
  bool is_let_go() const { return let_go_.load(std::memory_order_acquire); }
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
  std::optional<CompletionNotifier> notifier_;  // rings after the last use, once he has let go
  std::atomic<bool> let_go_{false};
};

// What all ranks of a group ask for together, and what comes of it: memory on all of them or on none.
struct SymmetricAllocation {
  std::size_t bytes = 0;
  Stream stream = nullptr;
  std::shared_ptr<SymmetricMemory> memory = nullptr;  // null: refused
  Status refusal = {};                                // the same on all ranks
  int64_t number = -1;                                // of this memory in its group: the same on all ranks
  bool is_known = false;                              // to the library, on all ranks: they must use it alike
};

}  // namespace fdl
