// The TCP transport uses one or more connections per channel. The caller drives it; epoll is used only for sleeping.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

// Connects this rank with every member whose entry in `peers` is set; its own entry is not read. All members must call
// it with the same id and agree on who their peers are.
//
// Without membership.tcp_connector it blocks until all are connected or the membership's deadline passes; the error
// names the missing ranks. With a connector it returns at once, and two ranks are connected when one of them first uses
// a channel to the other. A rank with another job key is AUTHENTICATION.
//
// A peer that ends its transport in order is lost only to ranks that still send to it, or receive more than it sent. A
// peer that dies is lost at once to those that have a connection with it.
Result<std::unique_ptr<Transport>> connect_tcp(const Membership& membership, const std::vector<bool>& peers);
// The same at set-up, with streams[p] connections for each channel with member p; 0 for members that are no peers.
Result<std::unique_ptr<Transport>> connect_tcp_streams(const Membership& membership, std::vector<int> streams);
// The same at first use.
Result<std::unique_ptr<Transport>> connect_tcp_on_demand(const Membership& membership, std::vector<int> streams,
                                                         const std::shared_ptr<TcpConnector>& connector);

// Starts the connector of a world: see transports/tcp/connector.h. All ranks must call it before they make a
// communicator.
Result<std::shared_ptr<TcpConnector>> start_tcp_connector(const Membership& world, std::unique_ptr<Exchange> exchange);
// Ends its thread. Communicators that are left make no new connections.
void stop_tcp_connector(TcpConnector& connector);

}  // namespace fdl
