// MemoryCache keeps released memory for later requests of about the same size.
//
// Released memory may still be in use by queued work, so it is handed out again only when its events are reached. There
// are four sizes for every power of two, so at most a fifth is wasted. The amount of idle memory is bounded. Any thread
// may call.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "cuda/events.h"

namespace fdl::cuda {

// The size that is allocated for a request of so many bytes; at least 4096.
std::size_t size_class(std::size_t bytes);

class MemoryCache {
 public:
  using Allocate = std::function<Outcome(std::size_t bytes, void** memory)>;
  using Free = std::function<void(void* memory)>;
  // Whether this memory is freed without a wait for the device. The library's own threads, and those that drive, free
  // no other memory while there is enough: a kernel on the device may wait for a peer that waits for them.
  using FreesAtOnce = std::function<bool(void* memory)>;

  MemoryCache(Allocate allocate, Free free, std::size_t most_idle_bytes, FreesAtOnce frees_at_once)
      : allocate_(std::move(allocate)),
        free_(std::move(free)),
        most_idle_bytes_(most_idle_bytes),
        frees_at_once_(std::move(frees_at_once)) {}
  ~MemoryCache();
  MemoryCache(const MemoryCache&) = delete;
  MemoryCache& operator=(const MemoryCache&) = delete;

  // Hands out memory of at least `bytes`. If the device is out of memory, it frees idle memory and tries again.
  Outcome take(std::size_t bytes, void** memory);
  // Allocates until so many blocks for `bytes` are idle and not in use.
  Outcome reserve(std::size_t bytes, int count);
  // Takes back memory that queued work uses until the events are reached.
  void give(void* memory, DeviceEvents in_use_until);

  std::size_t idle_bytes() const;

 private:
  // A released block, and the events of the work that may still use it.
  struct Idle {
    void* memory;
    DeviceEvents until;
  };

  void* take_idle(std::size_t size) FDL_REQUIRES(mutex_);
  // Frees idle memory that is no longer in use until at most `most_bytes` are kept, and returns whether there was any.
  // `may_wait`: also memory whose release waits for the device.
  bool trim(std::size_t most_bytes, bool may_wait);

  const Allocate allocate_;
  const Free free_;
  const std::size_t most_idle_bytes_;
  const FreesAtOnce frees_at_once_;
  mutable Mutex mutex_;
  std::map<void*, std::size_t> out_ FDL_GUARDED_BY(mutex_);               // memory handed out, with its size
  std::map<std::size_t, std::vector<Idle>> idle_ FDL_GUARDED_BY(mutex_);  // by size
  std::size_t idle_bytes_ FDL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fdl::cuda
