// The loopback transport connects threads of one process, for tests. It prefers simplicity to speed.
#pragma once

#include <memory>

#include "base/status.h"
#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

// Ranks find each other in this process by membership.id. Blocks until all have called or the membership's deadline
// passes; the error names the missing ranks.
Result<std::unique_ptr<Transport>> connect_loopback(const Membership& membership);

}  // namespace fdl
