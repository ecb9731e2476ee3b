// Handle: the outcome of one submission, shared between threads that wait and the one that completes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "contract/device.h"
#include "engine/device/symmetric_memory.h"

namespace fdl {

// Memory that the library allocated for an output whose size was known only after agreement.
struct FreeMemory {
  std::shared_ptr<Device> device = nullptr;  // whose memory it is; null: the CPU's
  void* stream = nullptr;                    // on which its user works with it
  void operator()(void* memory) const { device ? device->release(memory) : std::free(memory); }
};
using OwnedMemory = std::unique_ptr<void, FreeMemory>;

// 64-byte aligned; null when memory is short. Zero bytes still give an address.
OwnedMemory allocate_aligned(std::size_t bytes);

class Handle {
 public:
  struct Output {
    OwnedMemory memory;
    void* data = nullptr;  // where the result is: memory, or the caller's own
    std::vector<int64_t> shape;
    std::vector<int64_t> received_splits;
    int last_joined = -1;
    SymmetricAllocation symmetric_allocation;  // what was asked for in the place of a result
  };

  explicit Handle(std::size_t operations) : outputs_(operations), unfinished_(operations) {}

  // ---- whoever drives ----
  Output& output(std::size_t index) { return outputs_[index]; }
  // The first failure is the handle's. When the last operation is finished, waiters and the callback are told.
  void finish_one(const Status& status);

  // ---- any thread ----
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Until it is done, or `something_else` holds (whoever makes it hold calls wake), or the deadline.
  template <typename Condition>
  void wait(Deadline deadline, Condition something_else) {
    MutexLock lock(mutex_);
    finished_.wait(mutex_, deadline, [&] { return done() || something_else(); });
  }
  void wake() {
    MutexLock lock(mutex_);
    finished_.notify_all();
  }
  // Legal once done.
  const Status& status() const { return status_; }
  std::size_t operation_count() const { return outputs_.size(); }
  // Runs when done, in the thread that completes it, or at once.
  void notify(std::function<void()> function);

 private:
  std::vector<Output> outputs_;
  Mutex mutex_;
  CondVar finished_;
  std::size_t unfinished_ FDL_GUARDED_BY(mutex_);
  std::function<void()> callback_ FDL_GUARDED_BY(mutex_);
  Status status_;  // written by the loop before done_
  std::atomic<bool> done_{false};
};

}  // namespace fdl
