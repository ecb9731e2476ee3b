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

// Retries until it has reached the coordinator or the deadline passes, and resolves names anew each time. `mine` is the
// name of this rank for the coordinator; `purpose` must be equal on both ends. If the rendezvous identifies exactly one
// server, repeated refusals of the key are an error before the deadline.
Result<FoundCoordinator> find_coordinator(const std::string& rendezvous, const std::string& job_key,
                                          const std::string& mine, Deadline deadline,
                                          std::string_view purpose = kCoordinatorPurpose);

}  // namespace fdl
