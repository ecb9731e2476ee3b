// The shared-memory transport connects ranks of one host by channels that are rings in one shared segment.
#pragma once

#include <memory>
#include <vector>

#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

// Connects this rank with the members for which `peers` is true. All of them are on its host and all connect with each
// other; the entry of this rank is not read. Blocking. Each rank contributes config.shm_bytes of shared memory, which
// its rings to all peers divide.
//
// A peer that has left is lost when this rank needs more from it. A peer whose process has ended is lost as soon as
// everything it wrote has been read.
Result<std::unique_ptr<Transport>> connect_shm(const Membership& membership, const std::vector<bool>& peers);

}  // namespace fdl
