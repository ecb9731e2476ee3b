// RecoveryPoint is what a rank needs to make a new world with the other survivors when ranks are lost: a listener of
// its own, and the addresses of all others. It passes on from each world to the one that is made of its survivors.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "bootstrap/coordinator/coordinator_client.h"
#include "system/fd.h"

namespace fdl {

struct RecoveryPoint {
  UniqueFd listener;
  std::string address;  // of the listener: "unix:@name", or "host:port" of all interfaces with commas between
  // By rank of the first world, which is this rank's name in all rounds.
  int me = 0;
  std::vector<CoordinatorClient::Hello> ranks;
  uint64_t round = 0;
  std::vector<int> members;  // of the present world, in its order
  std::string key;
};

// How the ranks of a world have found the coordinator.
struct MeetingFacts {
  bool on_one_host = false;
  bool by_service = false;  // the launcher's own service, or the program, has passed the address on
};

// Returns why such a world keeps no recovery listener; empty if it keeps one. `transport`: the one that joins hosts.
std::string why_no_recovery(std::string_view transport, const Environment& environment, const MeetingFacts& facts);

// Opens the listener where this rank can be reached: at a name of the host if the ranks meet in one, else at the first
// free port of this rank's.
Result<RecoveryPoint> open_recovery_point(const std::string& rendezvous, const Config& config);

}  // namespace fdl
