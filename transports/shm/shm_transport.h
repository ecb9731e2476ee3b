// Shared-memory transport: lanes between ranks of one host, through rings in one segment.
#pragma once

#include <memory>
#include <vector>

#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

// Connects this rank with those members for which `peers` is true: all on its host, and all of them connect with each
// other (peers of itself is not read). Blocking. Each rank contributes config.shm_bytes of shared memory, shared by
// the rings to all its peers.
// A peer that has left counts as lost when it is needed; one whose process has ended, as soon as what it had written
// is read.
Result<std::unique_ptr<Transport>> connect_shm(const Membership& membership, const std::vector<bool>& peers);

}  // namespace fdl
