// Owners maps the address of memory that the application holds to the owner that can free it.
#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>

#include "base/mutex.h"

namespace fdl::capi {

// The memory lives until it is freed, also after the end of its world. An address that is not kept here is ordinary
// memory. From any thread. Instances are static and never destroyed, because memory that the application did not free
// is still in use while the process exits.
template <typename Owner>
class Owners {
 public:
  void keep(void* memory, std::shared_ptr<Owner> owner) {
    const MutexLock lock(mutex_);
    owners_[memory] = std::move(owner);
    used_.store(true, std::memory_order_relaxed);
  }
  // Removes and returns the owner; null for ordinary memory. Takes no lock if none was ever kept: then a forked child
  // does not wait for a lock that another thread of its parent held. Who frees memory got its address after keep().
  std::shared_ptr<Owner> forget(void* memory) {
    if (!used_.load(std::memory_order_relaxed)) return nullptr;
    const MutexLock lock(mutex_);
    const auto found = owners_.find(memory);
    if (found == owners_.end()) return nullptr;
    std::shared_ptr<Owner> owner = std::move(found->second);
    owners_.erase(found);
    return owner;
  }

 private:
  std::atomic<bool> used_{false};
  Mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<Owner>> owners_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl::capi
