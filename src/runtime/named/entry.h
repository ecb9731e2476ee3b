// Entry is one named operation of this rank, from submission to completion. PlannedBucket is a bucket that the ranks
// have agreed on, with this rank's entries of it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "agree/session/submissions.h"
#include "runtime/device/devices.h"
#include "runtime/named/handle.h"

namespace fdl {

struct Entry {
  Request request;
  const void* input = nullptr;
  void* output = nullptr;                        // null: the library allocates it
  std::shared_ptr<DevicePlace> place = nullptr;  // null: input and output lie in the CPU's memory
  UnfinishedOperation handle;
  std::size_t index = 0;  // in the handle
  // The request is agreed on as a broadcast, but allocates symmetric memory of that size on the device of each rank.
  bool allocates_symmetric = false;
  // For metrics and the timeline: the clock time of submission, and the number in the timeline (0: not traced).
  int64_t submitted_ns = 0;
  uint64_t traced = 0;
  uint64_t recorded = 0;  // its number in the history of this process; 0: it is not recorded

  std::size_t element_count() const { return static_cast<std::size_t>(request.element_count()); }
  std::size_t byte_count() const { return request.byte_count(); }
  // The memory of the result: the caller's output, or memory of the handle once make_output() has allocated it.
  Handle::Output& result() const { return handle->output(index); }
};

// One for each name of a bucket. An element is empty if this rank has joined, or begins the bucket with zeros.
using Entries = std::vector<std::optional<Entry>>;

// The entries are matched with the names when the plan arrives, because a name that is submitted again later is a new
// request.
using PlannedBucket = Submissions<Entry>::Begun;

}  // namespace fdl
