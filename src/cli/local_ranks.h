// LocalRanks: the ranks of one measurement on this host, as threads or as processes, all of which end before it does.
#pragma once

#include <functional>
#include <string>

namespace fdl {

// Threads of one process can only be joined by loopback; everything else gets real processes.
inline bool runs_in_threads(const std::string& transport) { return transport == "loopback"; }
// Where they meet; nobody else has it.
std::string fresh_rendezvous(bool threads, const std::string& name);
// The worst of their exit codes; the others of a rank that failed are ended.
int run_local_ranks(int ranks, bool threads, const std::function<int(int rank)>& body);

}  // namespace fdl
