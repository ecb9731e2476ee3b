// Handle: completion is published once.
#include "runtime/handle.h"

#include <cstdlib>

namespace fdl {

OwnedMemory allocate_aligned(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return OwnedMemory(std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded));
}

void Handle::finish_one(const Status& status) {
  std::function<void()> callback;
  {
    MutexLock lock(mutex_);
    if (status_.ok()) status_ = status;
    if (--unfinished_ > 0) return;
    done_.store(true, std::memory_order_release);
    callback.swap(callback_);
    // Under the lock: a waiter that saw done_ may otherwise free the handle before it is notified.
    finished_.notify_all();
  }
  if (callback) callback();
}

void Handle::notify(std::function<void()> function) {
  {
    MutexLock lock(mutex_);
    if (!done()) {
      callback_ = std::move(function);
      return;
    }
  }
  function();
}

}  // namespace fdl
