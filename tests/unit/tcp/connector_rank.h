// ConnectorRank is a rank of a test that connects at first use.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/participant.h"
#include "transports/tcp/tcp_transport.h"

namespace fdl::test {

// One rank of a world with a connector, in a thread of the test.
class ConnectorRank {
 public:
  ConnectorRank(Participant& world, int rank) : world_(world), membership_(world.membership(rank)) {
    membership_.tcp_connector =
        require(start_tcp_connector(membership_, std::make_unique<ExchangeOf>(*membership_.exchange)));
  }
  ~ConnectorRank() { stop_tcp_connector(*membership_.tcp_connector); }
  ConnectorRank(const ConnectorRank&) = delete;
  ConnectorRank& operator=(const ConnectorRank&) = delete;

  Membership membership(const std::string& id = "") const {
    Membership made = membership_;
    if (!id.empty()) made.id = id;
    return made;
  }
  std::unique_ptr<Transport> connect(const std::string& id = "", int streams = 1) const {
    return require(connect_tcp_on_demand(
        membership(id), std::vector<int>(static_cast<std::size_t>(world_.size()), streams), membership_.tcp_connector));
  }

 private:
  Participant& world_;
  Membership membership_;
};

}  // namespace fdl::test
