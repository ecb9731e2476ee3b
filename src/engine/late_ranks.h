// Late ranks: which ranks an operation in flight waits for, as an error says it, and how a thread that does not drive
// the communicator asks the one that does.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "contract/membership.h"
#include "system/event.h"

namespace fdl {

// An operation in flight, and the ranks of the group that it waits for. No ranks: they are not known.
struct Waiting {
  std::string_view operation;  // "allreduce"
  std::string_view group;
  std::string phase;  // "shared memory, allreduce of 10 float32"
  std::vector<int> ranks;
};

// The error that ends a communicator: the first rank that is waited for is its culprit.
Status timed_out(const Waiting& waiting, const std::vector<Member>& members);
// The same culprit, for a program that waits on: nothing has ended.
Status waits_for(const Waiting& waiting, const std::vector<Member>& members);

// A question to the driving thread, which alone may look at what it drives. The driving thread pays one relaxed load
// for each time that nothing has moved.
class DriverQuestion {
 public:
  // From any thread. Rings the driving thread, which may be asleep. Nothing: no thread drives, or it did not answer
  // before the deadline.
  std::optional<Status> ask(Event& alarm, Deadline deadline);
  // The driving thread's.
  bool is_open() const { return open_.load(std::memory_order_relaxed); }
  void answer(Status words);

 private:
  std::atomic<bool> open_{false};
  Mutex mutex_;
  CondVar answered_;
  uint64_t answers_ FDL_GUARDED_BY(mutex_) = 0;
  Status words_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl
