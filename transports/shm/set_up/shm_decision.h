// These functions move what the leader of a set-up decides to a member, over their socket: a length of 0 for success,
// else the length of a text and the text; after a success descriptors, in several messages.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

Status send_approval(int socket, Deadline deadline);
// `goes_on`: all members go on without the segment.
void send_refusal(int socket, const Status& why, bool goes_on, Deadline deadline);
// OK, or why `leader` refuses: `unsupported` if all members go on without the segment, else `timeout`.
Status receive_decision(int socket, const std::string& leader, Deadline deadline);

Status send_fds_in_parts(int socket, std::span<const int> fds, Deadline deadline);
Result<std::vector<UniqueFd>> receive_fds_in_parts(int socket, std::size_t count, const std::string& leader,
                                                   Deadline deadline);

}  // namespace fdl
