// What a launcher tells the coordinator about a rank of its own whose process has ended. If that rank has not joined
// the job, all others learn it at once, instead of at the limit of the start.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace fdl {

// The failure of the start on all ranks. `process_id`: 0 where it is not known. `how`: "exit code 3".
Status ended_before_joining(int rank, int process_id, const std::string& host, std::string_view how);

// Tells the coordinator at `rendezvous`; for a launcher of another process. `why` is an ended_before_joining(). Blocks
// until the coordinator has confirmed it. TIMEOUT if it cannot be reached until the deadline, PEER_LOST if it ends.
Status send_ended_rank(const std::string& rendezvous, const std::string& job_key, int rank, const Status& why,
                       Deadline deadline);

}  // namespace fdl
