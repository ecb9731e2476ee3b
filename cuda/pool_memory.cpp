// PoolMemory's stream is idle except for the calls that are made here, so that to wait for it takes no time.
#include "cuda/pool_memory.h"

#include "base/thread_role.h"

namespace fdl::cuda {
namespace {

void* address(Pointer memory) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory)); }

}  // namespace

PoolMemory::~PoolMemory() {
  if (stream_ == nullptr) return;
  const RelaxedScope scope(calls_);
  (void)calls_.driver.cuStreamSynchronize(stream_);  // returns what was freed to the device
  (void)calls_.driver.cuStreamDestroy_v2(stream_);
}

// A failure here is no error: memory is ordinary then.
void PoolMemory::begin(DeviceNumber number) {
  int has_pools = 0;
  const RelaxedScope scope(calls_);
  if (calls_.driver.cuDeviceGetAttribute(&has_pools, kAttributeMemoryPools, number) != kSuccess || has_pools == 0) {
    return;
  }
  if (calls_.driver.cuStreamCreateWithPriority(&stream_, kStreamNonBlocking, 0) != kSuccess) stream_ = nullptr;
}

Outcome PoolMemory::allocate(std::size_t bytes, void** memory) {
  Pointer allocated = 0;
  if (stream_ == nullptr || (bytes < kLargeBytes && !must_not_wait_for_devices())) {
    const Outcome outcome = calls_.driver.cuMemAlloc_v2(&allocated, bytes);
    *memory = address(allocated);
    return outcome;
  }
  Outcome outcome = calls_.driver.cuMemAllocAsync(&allocated, bytes, stream_);
  // Other streams may use the memory only behind this point.
  if (outcome == kSuccess) outcome = calls_.driver.cuStreamSynchronize(stream_);
  *memory = address(allocated);
  if (outcome != kSuccess) return outcome;
  const MutexLock lock(mutex_);
  pooled_.insert(*memory);
  return kSuccess;
}

bool PoolMemory::frees_at_once(void* memory) const {
  const MutexLock lock(mutex_);
  return pooled_.contains(memory);
}

void PoolMemory::free(void* memory) {
  bool is_pooled = false;
  {
    const MutexLock lock(mutex_);
    is_pooled = pooled_.erase(memory) > 0;
  }
  const auto pointer = static_cast<Pointer>(reinterpret_cast<std::uintptr_t>(memory));
  if (is_pooled) {
    (void)calls_.driver.cuMemFreeAsync(pointer, stream_);
  } else {
    (void)calls_.driver.cuMemFree_v2(pointer);
  }
}

}  // namespace fdl::cuda
