// ShmMemory: memory of one host's ranks: one sparse segment that all of them map, of which each rank owns one part.
//
// Only what is allocated is backed by memory, extent by extent, so that the parts may be as large as the host and a
// host that is full is an error and no SIGBUS.
#pragma once

#include <memory>

#include "contract/host_memory.h"
#include "contract/membership.h"

namespace fdl {

// For the members on this rank's host, up to config.memory_bytes each, with the leader's word for all. Blocking.
// Null, after one line in the log where that is no matter of course, if they cannot have it.
Result<std::shared_ptr<HostMemory>> share_memory(const Membership& membership);

}  // namespace fdl
