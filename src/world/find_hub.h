// Find hub: from a rendezvous to a connection on which both ends have proved the job's key.
#pragma once

#include <string>

#include "base/clock.h"
#include "system/fd.h"
#include "system/handshake.h"

namespace fdl {

inline constexpr std::string_view kHubPurpose = "hub";

struct FoundHub {
  UniqueFd fd;
  Introduced introduced;
};

// Tries again until the hub is there or the deadline passes; names are resolved anew each time. `mine` names this rank
// to the hub; `purpose` is what both ends must mean. A hub that refuses the key is an error at once where only one can
// be meant.
Result<FoundHub> find_hub(const std::string& rendezvous, const std::string& job_key, const std::string& mine,
                          Deadline deadline, std::string_view purpose = kHubPurpose);

}  // namespace fdl
