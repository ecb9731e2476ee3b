// find_coordinator connects to the coordinator of a rendezvous; both ends of the connection have proved the job's key.
#pragma once

#include <string>

#include "base/clock.h"
#include "system/fd.h"
#include "system/handshake.h"

namespace fdl {

inline constexpr std::string_view kCoordinatorPurpose = "coordinator";

struct FoundCoordinator {
  UniqueFd fd;
  Introduced introduced;
};

// Tries again until the coordinator is there or the deadline passes; names are resolved anew each time. `mine` names
// this rank to the coordinator; `purpose` is what both ends must mean. A coordinator that refuses the key is an error
// at once where only one can be meant.
Result<FoundCoordinator> find_coordinator(const std::string& rendezvous, const std::string& job_key,
                                          const std::string& mine, Deadline deadline,
                                          std::string_view purpose = kCoordinatorPurpose);

}  // namespace fdl
