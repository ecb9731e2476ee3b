// Handle: the outcome of one submission, shared between the thread that waits and the loop that completes it.
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

namespace fdl {

// Memory that the library allocated for an output whose size was known only after agreement.
struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
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
  };

  explicit Handle(std::size_t operations) : outputs_(operations), unfinished_(operations) {}

  // ---- the loop ----
  Output& output(std::size_t index) { return outputs_[index]; }
  // The first failure is the handle's. When the last operation is finished, waiters and the callback are told.
  void finish_one(const Status& status);

  // ---- any thread ----
  bool done() const { return done_.load(std::memory_order_acquire); }
  // True when it is done before the deadline.
  bool wait(Deadline deadline);
  // Legal once done.
  const Status& status() const { return status_; }
  std::size_t operation_count() const { return outputs_.size(); }
  // Runs when done, from the loop, or at once.
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
