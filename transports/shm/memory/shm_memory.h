// ShmMemory is the shared memory of one host's ranks: one sparse segment that all of them map and of which each rank
// owns a part.
//
// Only allocated extents are backed by memory. So each part may be as large as the host, and a full host is an error
// rather than a SIGBUS.
#pragma once

#include <memory>

#include "contract/host_memory.h"
#include "contract/membership.h"

namespace fdl {

// Shares memory among the members on this rank's host: up to config.memory_bytes each, as the lowest of them decides.
// Blocking. Null if they cannot have it; if that is unexpected, one line in the log gives the reason.
Result<std::shared_ptr<HostMemory>> share_memory(const Membership& membership);

}  // namespace fdl
