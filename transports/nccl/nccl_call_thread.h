// NcclCallThread makes calls of NCCL that may wait for other ranks, so that the driving thread does not wait with them.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "transports/nccl/nccl_abi.h"

namespace fdl {

// One thread drives the object: begin(), then has_ended() until it is true, then outcome().
class NcclCallThread {
 public:
  NcclCallThread();
  // Waits for the call that runs.
  ~NcclCallThread();
  NcclCallThread(const NcclCallThread&) = delete;
  NcclCallThread& operator=(const NcclCallThread&) = delete;

  // Whether the calling thread is one of these.
  static bool is_current();

  void begin(std::function<nccl::Outcome()> call);
  // What the call wrote is visible once this is true.
  bool has_ended() const { return !runs_.load(std::memory_order_acquire); }
  // Takes the call back if the thread has not begun it, or else waits for its end. False: it still runs.
  bool end_within(Deadline deadline);
  nccl::Outcome outcome() const { return outcome_; }

 private:
  void run();

  Mutex mutex_;
  CondVar changed_;
  std::function<nccl::Outcome()> call_ FDL_GUARDED_BY(mutex_);
  std::atomic<bool> ends_{false};
  std::atomic<bool> runs_{false};  // from begin() until the call has returned
  nccl::Outcome outcome_ = nccl::Outcome::success;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace fdl
