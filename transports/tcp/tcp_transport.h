// TCP: a connection a lane, or several, driven by the caller; epoll is asked only for sleeping.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

// Connects this rank with every member whose place in `peers` is set (its own does not count); all members call it with
// the same id and agree on who connects with whom. Blocking, until all are connected or the membership's deadline
// passes; the error then names who is missing. A rank with another job key is AUTHENTICATION.
//
// A peer that ends its transport in order is lost only for who still wants something of it (sends, or receives more
// than it sent); a peer that dies is lost at once.
Result<std::unique_ptr<Transport>> connect_tcp(const Membership& membership, const std::vector<bool>& peers);
// The same, with so many connections for each lane with each member as `streams` says; 0 with those that are no peers.
Result<std::unique_ptr<Transport>> connect_tcp_streams(const Membership& membership, std::vector<int> streams);

}  // namespace fdl
