// MemoryCache keeps one list of idle blocks per size. The largest blocks are freed first.
#include "cuda/memory_cache.h"

#include <algorithm>
#include <bit>

#include "base/thread_role.h"

namespace fdl::cuda {
namespace {

bool all_reached(const DeviceEvents& events) {
  return std::all_of(events.begin(), events.end(), [](const auto& event) { return event->reached(); });
}

}  // namespace

std::size_t size_class(std::size_t bytes) {
  constexpr std::size_t kLeast = 4096;
  if (bytes <= kLeast) return kLeast;
  // A quarter of the power of two below `bytes` is the step between sizes.
  const std::size_t quarter = std::bit_floor(bytes - 1) / 4;
  return (bytes + quarter - 1) / quarter * quarter;
}

MemoryCache::~MemoryCache() {
  for (const auto& [size, blocks] : idle_) {
    for (const Idle& block : blocks) free_(block.memory, size);
  }
}

// Takes an idle block of exactly this size class whose events are reached, or null.
void* MemoryCache::take_idle(std::size_t size) {
  const auto list = idle_.find(size);
  if (list == idle_.end()) return nullptr;
  auto& blocks = list->second;
  const auto ready =
      std::find_if(blocks.begin(), blocks.end(), [](const Idle& block) { return all_reached(block.until); });
  if (ready == blocks.end()) return nullptr;
  void* const memory = ready->memory;
  blocks.erase(ready);
  idle_bytes_ -= size;
  return memory;
}

Outcome MemoryCache::take(std::size_t bytes, void** memory) {
  const std::size_t size = size_class(bytes);
  const MutexLock lock(mutex_);
  *memory = take_idle(size);
  if (*memory == nullptr) {
    Outcome outcome = allocate_(size, memory);
    // Idle blocks of other sizes may hold the memory that is missing.
    if (outcome == kOutOfMemory && idle_bytes_ > 0) {
      trim(0, true);
      outcome = allocate_(size, memory);
    }
    if (outcome != kSuccess) return outcome;
  }
  out_[*memory] = size;
  return kSuccess;
}

void MemoryCache::give(void* memory, DeviceEvents in_use_until) {
  const MutexLock lock(mutex_);
  const auto found = out_.find(memory);
  FDL_CHECK(found != out_.end());
  idle_[found->second].push_back({memory, std::move(in_use_until)});
  idle_bytes_ += found->second;
  out_.erase(found);
  if (idle_bytes_ > most_idle_bytes_) trim(most_idle_bytes_, !is_library_thread);
}

Outcome MemoryCache::reserve(std::size_t bytes, int count) {
  const std::size_t size = size_class(bytes);
  int ready = 0;
  {
    const MutexLock lock(mutex_);
    for (const Idle& block : idle_[size]) ready += all_reached(block.until) ? 1 : 0;
  }
  // Without the lock: the driver may wait for the device here, and other threads need the idle blocks meanwhile.
  for (; ready < count; ++ready) {
    void* memory = nullptr;
    const Outcome outcome = allocate_(size, &memory);
    if (outcome != kSuccess) return outcome;
    const MutexLock lock(mutex_);
    idle_[size].push_back({memory, {}});
    idle_bytes_ += size;
  }
  return kSuccess;
}

void MemoryCache::trim(std::size_t most_bytes, bool may_wait) {
  for (auto list = idle_.rbegin(); list != idle_.rend() && idle_bytes_ > most_bytes; ++list) {
    if (!may_wait && !frees_at_once_(list->first)) continue;
    auto& blocks = list->second;
    for (std::size_t i = blocks.size(); i-- > 0 && idle_bytes_ > most_bytes;) {
      // Blocks in use stay: freeing them would block until the device is idle.
      if (!all_reached(blocks[i].until)) continue;
      free_(blocks[i].memory, list->first);
      idle_bytes_ -= list->first;
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

std::size_t MemoryCache::idle_bytes() const {
  const MutexLock lock(mutex_);
  return idle_bytes_;
}

}  // namespace fdl::cuda
