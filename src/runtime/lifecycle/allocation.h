// Allocation: memory that all ranks of the host map where there is some, else ordinary memory; back where it came from
// when it ends.
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

// Zeroed, 64-byte aligned. RESOURCE when memory is short; `host` may be null, and where it has no more room one line in
// the log says so.
Result<Allocation> allocate(const std::shared_ptr<HostMemory>& host, std::size_t bytes);

}  // namespace fdl
