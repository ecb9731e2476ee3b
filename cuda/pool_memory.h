// PoolMemory allocates memory of the device, and takes it from the driver's pool where a wait for the device would do
// harm.
//
// cuMemFree waits until the device is idle, and cuMemAlloc may. While a kernel of NCCL waits there for a peer, that is
// a stall, and a deadlock if the peer waits for this thread. Memory of the driver's pool is allocated and freed in the
// order of a stream instead: of one of its own, on which nothing else runs. The library's own threads, and those
// that drive, get all their memory there, and every thread the blocks that are too large to be kept. Other memory is
// ordinary, because other devices can access it without further calls. Where the driver has no pools, all memory is
// ordinary.
#pragma once

#include <set>

#include "base/mutex.h"
#include "cuda/calls.h"

namespace fdl::cuda {

class PoolMemory {
 public:
  explicit PoolMemory(Calls& calls) : calls_(calls) {}
  ~PoolMemory();
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  // Call once, when the device is current, before anything else.
  void begin(DeviceNumber number);

  // The memory may be used on any stream at once.
  Outcome allocate(std::size_t bytes, void** memory);
  // No work may use the memory any more.
  void free(void* memory);
  // Whether free() does not wait for the device.
  bool frees_at_once(void* memory) const;

 private:
  // MemoryCache keeps smaller blocks for reuse in nearly all programs.
  static constexpr std::size_t kLargeBytes = std::size_t{32} << 20;

  Calls& calls_;
  void* stream_ = nullptr;  // null: the driver has no pools
  mutable Mutex mutex_;
  std::set<void*> pooled_ FDL_GUARDED_BY(mutex_);  // memory of the pool
};

}  // namespace fdl::cuda
