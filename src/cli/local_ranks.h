// LocalRanks runs the ranks of one measurement on this host, as threads or as processes, and waits for all of them.
#pragma once

#include <functional>
#include <string>

#include "farandole/farandole.h"

namespace fdl {

// The loopback transport works only between threads of one process; all other transports get real processes.
inline bool runs_in_threads(const std::string& transport) { return transport == "loopback"; }
// A rendezvous address that no other measurement uses.
std::string fresh_rendezvous(bool threads, const std::string& name);
// Calls `body` once for each rank and blocks until all have ended. Returns the largest exit code of threads, or the
// exit code of the first process that failed; the other processes are then terminated.
int run_local_ranks(int ranks, bool threads, const std::function<int(int rank)>& body);

// The exit code of a rank whose measurement has failed: a bug of farandole, its configuration, ranks that have not
// arrived, or one that was lost.
int exit_code_of(fdl_result failure);

}  // namespace fdl
