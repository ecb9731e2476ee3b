// The late-rank functions describe which ranks an operation in flight waits for. DriverQuery lets a thread that does
// not drive the communicator query the thread that does.
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

// An operation in flight, and the ranks of the group that it waits for; empty if they are not known.
struct LateRanks {
  std::string_view operation;  // "allreduce"
  std::string_view group;
  std::string phase;  // "shared memory, allreduce of 10 float32"
  std::vector<int> ranks;
};

// The error that ends a communicator. The first rank that the operation waits for is the culprit.
Status timed_out(const LateRanks& waiting, const std::vector<Member>& members);
// An error with the same culprit for a caller that stops waiting while the operation stays in flight.
Status waits_for(const LateRanks& waiting, const std::vector<Member>& members);

// The oldest operation in flight of a communicator, as its driving thread describes it.
struct InFlight {
  std::string operation;
  std::string phase;
  std::vector<int> ranks;  // world ranks that it waits for, as far as they are known
  int64_t waited_ns = -1;  // since its call or, without a history, since nothing has moved; -1: unknown
  bool any = false;        // false: nothing is in flight
  Status late;             // waits_for() of it
};
InFlight describe(const LateRanks& waiting, const std::vector<Member>& members, bool any, int64_t waited_ns);

// A query to the driving thread, which alone may inspect the operations that it drives. It costs the driving thread one
// relaxed load for each pass in which nothing has moved.
class DriverQuery {
 public:
  // Called from any thread. Rings `alarm`, on which the driving thread may sleep. Returns nothing if no thread drives,
  // or if it does not answer before the deadline.
  std::optional<InFlight> request(Event& alarm, Deadline deadline);
  // The same in two steps that do not block: ask() returns the number of the question, and find() its answer or that of
  // a later question, once it is there.
  uint64_t ask(Event& alarm);
  std::optional<InFlight> find(uint64_t question);
  // Called by the driving thread only.
  bool is_open() const { return open_.load(std::memory_order_relaxed); }
  void answer(InFlight answer);

 private:
  std::atomic<bool> open_{false};
  Mutex mutex_;
  CondVar answered_;
  uint64_t answers_ FDL_GUARDED_BY(mutex_) = 0;
  InFlight answer_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl
