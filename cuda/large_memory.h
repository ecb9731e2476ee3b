// LargeMemory allocates blocks that MemoryCache does not keep for long, and frees them without waiting for the device.
//
// cuMemFree waits until the device is idle. While a kernel of NCCL waits there for a peer, that is a stall, and a
// deadlock if the peer waits for this thread. Memory of the driver's pools is freed in the order of a stream instead:
// of one of its own, on which nothing else runs. Where the driver has no pools, all memory is ordinary.
#pragma once

#include "cuda/calls.h"

namespace fdl::cuda {

class LargeMemory {
 public:
  explicit LargeMemory(Calls& calls) : calls_(calls) {}
  ~LargeMemory();
  LargeMemory(const LargeMemory&) = delete;
  LargeMemory& operator=(const LargeMemory&) = delete;

  // Call once, when the device is current, before anything else.
  void begin(DeviceNumber number);

  // Whether blocks of this size are allocated here; always the same for a size.
  bool takes(std::size_t bytes) const { return stream_ != nullptr && bytes >= kLeastBytes; }
  // The memory may be used on any stream at once.
  Outcome allocate(std::size_t bytes, void** memory);
  // No work may use the memory any more.
  void free(void* memory);

 private:
  // Smaller blocks are kept for reuse in nearly all programs, and ordinary memory is accessible to other devices.
  static constexpr std::size_t kLeastBytes = std::size_t{32} << 20;

  Calls& calls_;
  void* stream_ = nullptr;  // null: the driver has no pools
};

}  // namespace fdl::cuda
