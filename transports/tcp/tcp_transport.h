// The TCP transport uses one or more connections per channel. The caller drives it; epoll is used only for sleeping.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

// Connects this rank with every member whose entry in `peers` is set; its own entry is not read. All members must call
// it with the same id and agree on who their peers are. Blocks until all are connected or the membership's deadline
// passes; the error names the missing ranks. A rank with another job key is AUTHENTICATION.
//
// A peer that ends its transport in order is lost only to ranks that still send to it, or receive more than it sent. A
// peer that dies is lost at once.
Result<std::unique_ptr<Transport>> connect_tcp(const Membership& membership, const std::vector<bool>& peers);
// The same, with streams[p] connections for each channel with member p; 0 for members that are no peers.
Result<std::unique_ptr<Transport>> connect_tcp_streams(const Membership& membership, std::vector<int> streams);

}  // namespace fdl
