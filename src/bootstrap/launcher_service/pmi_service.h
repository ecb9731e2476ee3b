// PMI-1's wire protocol: each message is a line of words "key=value", written to and read from the socket whose number
// is in PMI_FD. It is documented by MPICH's wiki, "PMI v1.1 Wire Protocol"; hydra, Intel MPI and Slurm speak it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "bootstrap/launcher_service/launcher_service.h"

namespace fdl {

Result<std::unique_ptr<LauncherService>> open_pmi(const Variables& variables);

// Returns whether PMI_FD is an open socket.
bool has_pmi(const Variables& variables);

// Returns the value of `key` in a line, or "". Pure.
std::string_view word_of(std::string_view line, std::string_view key);

}  // namespace fdl
