// Handle stores the outcome of one submission. Threads that wait share it with the thread that completes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "agree/negotiation/message.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "contract/device.h"
#include "engine/device/symmetric_memory.h"
#include "runtime/device/device_result.h"
#include "runtime/named/names_in_flight.h"

namespace fdl {

// Frees memory that the library allocated for an output whose size was known only after agreement.
struct FreeMemory {
  std::shared_ptr<Device> device = nullptr;  // the device of the memory; null for the CPU
  void* stream = nullptr;                    // the stream on which the operation's caller uses it
  void operator()(void* memory) const { device ? device->release(memory) : std::free(memory); }
};
using OwnedMemory = std::unique_ptr<void, FreeMemory>;

// 64-byte aligned; null when memory is short. Zero bytes still give an address.
OwnedMemory allocate_aligned(std::size_t bytes);

class Handle {
 public:
  struct Output {
    OwnedMemory memory;
    void* data = nullptr;  // the result: in `memory`, or in the caller's output
    std::vector<int64_t> shape;
    std::vector<int64_t> received_splits;
    int last_joined = -1;
    double error_bound = 0;                    // of a compressed operation
    SymmetricAllocation symmetric_allocation;  // of an entry that requests symmetric memory instead of a result
    // On a device: the point after which the result is valid, and the stream of the tensors, if a wait orders it. Set
    // before the end.
    std::shared_ptr<DeviceResult> ready;
    std::optional<Stream> stream;
  };

  // The newest report that ranks are missing, for the error of a wait that times out.
  struct Stall {
    std::shared_ptr<const std::string> text;  // null: there is none
    int64_t at_ns = 0;
  };

  explicit Handle(std::size_t operations) : outputs_(operations), unfinished_(operations) {}
  // Before another thread can use it: what its first operation is, and that it is submitted now.
  void begin(RequestKind kind);

  // ---- the thread that owns progress; once done, any thread that serializes its calls ----
  Output& output(std::size_t index) { return outputs_[index]; }
  // Ends one operation. The first failure becomes the handle's status. The last operation wakes all waiters and runs
  // the callback.
  void finish_one(const Status& status);
  void note_stall(std::shared_ptr<const std::string> text, int64_t at_ns);
  // All ranks have submitted the operation that was reported.
  void forget_stall() {
    if (has_stall_.load(std::memory_order_relaxed)) note_stall(nullptr, 0);
  }

  // ---- any thread ----
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Returns when the handle is done, when `something_else` returns true, or at the deadline. A thread that makes
  // `something_else` true must call wake() afterwards.
  template <typename Condition>
  void wait(Deadline deadline, Condition something_else) {
    MutexLock lock(mutex_);
    finished_.wait(mutex_, deadline, [&] { return done() || something_else(); });
  }
  void wake() {
    MutexLock lock(mutex_);
    finished_.notify_all();
  }
  RequestKind kind() const { return kind_; }
  // A few milliseconds too early at most; 0 without begin().
  int64_t begun_ns() const { return begun_ns_; }
  Stall stall() {
    MutexLock lock(mutex_);
    return stall_;
  }
  // The names of the operations. Release them once the caller has observed that the handle is done.
  TakenNames& names() { return names_; }
  // No caller will observe the end. Releases the names when the handle is done, or now if it is done already.
  void abandon();
  // Only once done: the release of done_ publishes it.
  const Status& status() const { return status_; }
  std::size_t operation_count() const { return outputs_.size(); }
  // Only once done, from the thread that has waited. Orders later work of the tensors' streams, or of `stream` if there
  // is one, after the results; the library's outputs then belong to that stream. Does nothing on the CPU, and for
  // operations that have failed.
  Status order_streams(std::optional<Stream> stream = std::nullopt);
  // Only once done: whether the device has finished, too. A device that has failed does no more work.
  bool is_done_on_device() const;
  // Sets the only callback. It runs in the thread that completes the handle, or at once if the handle is done already;
  // never under a lock. The names are free before it runs.
  void notify(std::function<void()> function);

 private:
  std::vector<Output> outputs_;
  Mutex mutex_;
  CondVar finished_;
  std::size_t unfinished_ FDL_GUARDED_BY(mutex_);
  std::function<void()> callback_ FDL_GUARDED_BY(mutex_);
  bool abandoned_ FDL_GUARDED_BY(mutex_) = false;
  Stall stall_ FDL_GUARDED_BY(mutex_);
  std::atomic<bool> has_stall_{false};
  RequestKind kind_ = RequestKind::allreduce;
  int64_t begun_ns_ = 0;
  TakenNames names_;
  Status status_;  // written under mutex_ before done_ is released, constant afterwards
  std::atomic<bool> done_{false};
};

// One operation of a handle, until it has ended. If this is destroyed before, because memory was short while the
// operation was moved from one list to another, the operation fails: a thread may wait for it without a limit.
class UnfinishedOperation {
 public:
  UnfinishedOperation() = default;
  UnfinishedOperation(std::shared_ptr<Handle> handle)
      : handle_(std::move(handle)) {}  // NOLINT(google-explicit-constructor)
  UnfinishedOperation(UnfinishedOperation&& other) noexcept
      : handle_(std::move(other.handle_)), finished_(other.finished_) {}
  UnfinishedOperation& operator=(UnfinishedOperation&& other) noexcept;
  ~UnfinishedOperation();

  void finish(const Status& status);
  Handle* operator->() const { return handle_.get(); }
  const std::shared_ptr<Handle>& shared() const { return handle_; }

 private:
  std::shared_ptr<Handle> handle_;
  bool finished_ = false;
};

}  // namespace fdl
