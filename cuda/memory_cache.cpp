// MemoryCache keeps one list of idle blocks per size. The largest blocks are freed first. Memory is allocated and freed
// without the lock: the driver may wait for the device there, and other threads need the idle blocks meanwhile.
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
    for (const Idle& block : blocks) free_(block.memory);
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
  {
    const MutexLock lock(mutex_);
    *memory = take_idle(size);
    if (*memory != nullptr) out_[*memory] = size;
  }
  if (*memory != nullptr) return kSuccess;
  Outcome outcome = allocate_(size, memory);
  // Idle blocks of other sizes may hold the memory that is missing.
  if (outcome == kOutOfMemory && trim(0, true)) outcome = allocate_(size, memory);
  if (outcome != kSuccess) return outcome;
  const MutexLock lock(mutex_);
  out_[*memory] = size;
  return kSuccess;
}

void MemoryCache::give(void* memory, DeviceEvents in_use_until) {
  {
    const MutexLock lock(mutex_);
    const auto found = out_.find(memory);
    FDL_CHECK(found != out_.end());
    idle_[found->second].push_back({memory, std::move(in_use_until)});
    idle_bytes_ += found->second;
    out_.erase(found);
    if (idle_bytes_ <= most_idle_bytes_) return;
  }
  (void)trim(most_idle_bytes_, !must_not_wait_for_devices());
}

Outcome MemoryCache::reserve(std::size_t bytes, int count) {
  const std::size_t size = size_class(bytes);
  int ready = 0;
  {
    const MutexLock lock(mutex_);
    for (const Idle& block : idle_[size]) ready += all_reached(block.until) ? 1 : 0;
  }
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

bool MemoryCache::trim(std::size_t most_bytes, bool may_wait) {
  std::vector<void*> dropped;
  {
    const MutexLock lock(mutex_);
    for (auto list = idle_.rbegin(); list != idle_.rend() && idle_bytes_ > most_bytes; ++list) {
      auto& blocks = list->second;
      for (std::size_t i = blocks.size(); i-- > 0 && idle_bytes_ > most_bytes;) {
        // Blocks in use stay: freeing them would block until the device is idle.
        if ((!may_wait && !frees_at_once_(blocks[i].memory)) || !all_reached(blocks[i].until)) continue;
        dropped.push_back(blocks[i].memory);
        idle_bytes_ -= list->first;
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  for (void* const memory : dropped) free_(memory);
  return !dropped.empty();
}

std::size_t MemoryCache::idle_bytes() const {
  const MutexLock lock(mutex_);
  return idle_bytes_;
}

}  // namespace fdl::cuda
