// MemoryCache: memory that was given back is kept for the next who asks for about as much.
//
// What is given back may still be in use by what is queued: it is given out again when the marks that it waits for are
// reached. Four sizes for every power of two, so at most a fifth is wasted. What is kept unused is bounded.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "cuda/events.h"

namespace fdl::cuda {

// The size that is allocated for so many bytes; at least 4096.
std::size_t size_class(std::size_t bytes);

class MemoryCache {
 public:
  using Allocate = std::function<Outcome(std::size_t bytes, void** memory)>;
  using Free = std::function<void(void* memory)>;

  MemoryCache(Allocate allocate, Free free, std::size_t most_idle_bytes)
      : allocate_(std::move(allocate)), free_(std::move(free)), most_idle_bytes_(most_idle_bytes) {}
  ~MemoryCache();
  MemoryCache(const MemoryCache&) = delete;
  MemoryCache& operator=(const MemoryCache&) = delete;

  // Short of memory, it gives back what it keeps before it fails.
  Outcome take(std::size_t bytes, void** memory);
  void give(void* memory, DeviceEvents in_use_until);

  std::size_t idle_bytes() const;

 private:
  struct Idle {
    void* memory;
    DeviceEvents until;
  };

  void* take_idle(std::size_t size) FDL_REQUIRES(mutex_);
  // Frees what nobody uses any more until no more than this is kept.
  void trim(std::size_t most_bytes) FDL_REQUIRES(mutex_);

  const Allocate allocate_;
  const Free free_;
  const std::size_t most_idle_bytes_;
  mutable Mutex mutex_;
  std::map<void*, std::size_t> out_ FDL_GUARDED_BY(mutex_);  // given out: size
  std::map<std::size_t, std::vector<Idle>> idle_ FDL_GUARDED_BY(mutex_);
  std::size_t idle_bytes_ FDL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fdl::cuda
