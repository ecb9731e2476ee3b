// Owners: whose memory it is that callers hold, where all that comes back is its address.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>

#include "base/mutex.h"

namespace fdl::capi {

// The memory lives until it is freed, also after its world. What was never kept here is ordinary. To be made static and
// never destroyed: what a program did not free is still in use while its process ends.
template <typename Owner>
class Owners {
 public:
  void keep(void* memory, std::shared_ptr<Owner> owner) {
    const MutexLock lock(mutex_);
    owners_[memory] = std::move(owner);
  }
  // Null where the memory is ordinary.
  std::shared_ptr<Owner> forget(void* memory) {
    const MutexLock lock(mutex_);
    const auto found = owners_.find(memory);
    if (found == owners_.end()) return nullptr;
    std::shared_ptr<Owner> owner = std::move(found->second);
    owners_.erase(found);
    return owner;
  }

 private:
  Mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<Owner>> owners_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl::capi
