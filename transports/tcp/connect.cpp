// The connect functions choose between a mesh and connections at first use.
#include <algorithm>

#include "transports/tcp/assembly.h"
#include "transports/tcp/tcp_transport.h"
#include "transports/tcp/transport.h"

namespace fdl {
namespace {

void check(const Membership& membership, const std::vector<int>& streams) {
  FDL_CHECK(static_cast<int>(streams.size()) == membership.size());
  FDL_CHECK(std::all_of(streams.begin(), streams.end(), [](int count) { return count >= 0 && count <= kMostStreams; }));
}

}  // namespace

Result<std::unique_ptr<Transport>> connect_tcp(const Membership& membership, const std::vector<bool>& peers) {
  FDL_CHECK(static_cast<int>(peers.size()) == membership.size());
  std::vector<int> streams = streams_with(membership, peers);
  // All members have a connector or none has: each must know whether the others wait for it.
  if (membership.tcp_connector) {
    return connect_tcp_on_demand(membership, std::move(streams), membership.tcp_connector);
  }
  return connect_tcp_streams(membership, std::move(streams));
}

Result<std::unique_ptr<Transport>> connect_tcp_streams(const Membership& membership, std::vector<int> streams) {
  check(membership, streams);
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(std::vector<TcpConnection> connections, Assembly::connect(membership, streams));
  auto transport = std::make_unique<TcpTransport>(membership, std::move(streams), std::move(poller), nullptr);
  FDL_RETURN_IF_ERROR(transport->attach_all(std::move(connections)));
  return std::unique_ptr<Transport>(std::move(transport));
}

Result<std::unique_ptr<Transport>> connect_tcp_on_demand(const Membership& membership, std::vector<int> streams,
                                                         const std::shared_ptr<TcpConnector>& connector) {
  check(membership, streams);
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(std::shared_ptr<TcpEndpoint> endpoint, connector->open(membership, streams));
  auto transport =
      std::make_unique<TcpTransport>(membership, std::move(streams), std::move(poller), std::move(endpoint));
  FDL_RETURN_IF_ERROR(transport->await_arrivals());
  return std::unique_ptr<Transport>(std::move(transport));
}

Result<std::shared_ptr<TcpConnector>> start_tcp_connector(const Membership& world, std::unique_ptr<Exchange> exchange) {
  return TcpConnector::start(world, std::move(exchange));
}

void stop_tcp_connector(TcpConnector& connector) { connector.stop(); }

}  // namespace fdl
