// Allocation owns memory that all ranks of the host map if there is any, else ordinary memory. It returns the memory to
// its source when it ends.
#pragma once

#include <cstdlib>
#include <memory>

#include "base/status.h"
#include "contract/host_memory.h"

namespace fdl {

struct ReturnMemory {
  std::shared_ptr<HostMemory> owner;  // null for ordinary memory
  void operator()(void* memory) const { owner ? owner->release(memory) : std::free(memory); }
};
using Allocation = std::unique_ptr<void, ReturnMemory>;

// Zeroed, 64-byte aligned. RESOURCE when memory is short. `host` may be null; if it is exhausted, ordinary memory is
// used and the first such allocation logs a warning.
Result<Allocation> allocate(const std::shared_ptr<HostMemory>& host, std::size_t bytes);

}  // namespace fdl
