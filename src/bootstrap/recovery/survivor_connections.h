// SurvivorConnections carries the messages of Survivors: the ranks that are left connect to each other's recovery
// listeners.
//
// One thread uses it. It drives the connections only in its calls.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/recovery/recovery_point.h"
#include "bootstrap/recovery/survivor_calls.h"
#include "bootstrap/recovery/survivors.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "system/socket.h"

namespace fdl {

class SurvivorConnections {
 public:
  // `lost`: ranks of the first world that a failure decision names. `point` outlives this object.
  // `lost_after_s`: a rank that cannot be reached for so long counts as lost; so a cut network makes two worlds.
  SurvivorConnections(RecoveryPoint& point, const std::set<int>& lost, double timeout_s, double lost_after_s = 10);

  // Blocks until the members of the next world are decided; then the point has them. An error is final.
  Status gather();
  // The serving rank sends the address of its coordinator to all members; each returns it. Collective, after gather().
  Result<std::string> share(const std::string& address);
  // The world was not made, because these ranks are lost. gather() comes next.
  void resume(const std::set<int>& lost);
  // Whether a process still listens at the serving rank's address.
  bool server_is_there();

 private:
  // A connection to another rank, over which this one sends.
  struct Link {
    std::vector<Address> addresses;
    std::size_t next_address = 0;
    bool was_refused = false;  // in this round over all addresses
    UniqueFd connecting;
    std::unique_ptr<FramedSocket> socket;
    Deadline until = Deadline::never();  // while connecting
  };
  // A connection that another process has opened.
  struct Incoming {
    std::unique_ptr<FramedSocket> socket;
    bool has_sent = false;  // it has sent a valid message
  };
  void turn(Deadline deadline);
  bool has_unsent() const;
  void flush();
  Deadline next(Deadline deadline) const;
  void keep_links();
  void begin(int rank, Link& link);
  void finish(int rank, Link& link);
  void fail_address(int rank, Link& link, bool refused);
  void drive(int rank, Link& link);
  static void send(Link& link, const std::vector<SurvivorMessage>& messages);
  void receive_all();
  void accept_all();
  bool receive(Incoming& incoming);

  RecoveryPoint& point_;
  const double lost_after_s_;
  Survivors survivors_;
  SurvivorCalls calls_;
  std::map<int, Link> links_;
  std::set<int> wanted_;  // at the last look
  std::list<Incoming> incoming_;
};

}  // namespace fdl
