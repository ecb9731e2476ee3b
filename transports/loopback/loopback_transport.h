// Loopback: a transport between threads of one process, for tests; correctness over speed.
#pragma once

#include <memory>

#include "base/status.h"
#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

// Ranks find each other by membership.id in this process. Waits until all have come or the membership's deadline
// passes; the error names who is missing.
Result<std::unique_ptr<Transport>> connect_loopback(const Membership& membership);

}  // namespace fdl
