// LargeMemory's stream is idle except for the calls that are made here, so that to wait for it takes no time.
#include "cuda/large_memory.h"

namespace fdl::cuda {

LargeMemory::~LargeMemory() {
  if (stream_ == nullptr) return;
  const RelaxedScope scope(calls_);
  (void)calls_.driver.cuStreamSynchronize(stream_);  // returns what was freed to the device
  (void)calls_.driver.cuStreamDestroy_v2(stream_);
}

// A failure here is no error: memory is ordinary then.
void LargeMemory::begin(DeviceNumber number) {
  int has_pools = 0;
  const RelaxedScope scope(calls_);
  if (calls_.driver.cuDeviceGetAttribute(&has_pools, kAttributeMemoryPools, number) != kSuccess || has_pools == 0) {
    return;
  }
  if (calls_.driver.cuStreamCreateWithPriority(&stream_, kStreamNonBlocking, 0) != kSuccess) stream_ = nullptr;
}

Outcome LargeMemory::allocate(std::size_t bytes, void** memory) {
  Pointer allocated = 0;
  Outcome outcome = calls_.driver.cuMemAllocAsync(&allocated, bytes, stream_);
  // Other streams may use the memory only behind this point.
  if (outcome == kSuccess) outcome = calls_.driver.cuStreamSynchronize(stream_);
  *memory = reinterpret_cast<void*>(static_cast<std::uintptr_t>(allocated));
  return outcome;
}

void LargeMemory::free(void* memory) {
  (void)calls_.driver.cuMemFreeAsync(reinterpret_cast<std::uintptr_t>(memory), stream_);
}

}  // namespace fdl::cuda
