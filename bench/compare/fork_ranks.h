// fork_ranks() runs the ranks of one host as children of one process; pin() gives each a core if there are enough.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace compare {

inline void pin(int rank, int ranks) {
  if (ranks > ::sysconf(_SC_NPROCESSORS_ONLN)) return;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // Only cores that this process may use: a container or taskset may forbid others.
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < ranks) return;
  int before = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || before++ != rank) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
  }
}

// Runs body(rank), which returns an exit code, in a child for each rank. Returns 0 if all returned 0, else 1. A rank
// that fails ends all others, and no child outlives this process.
template <typename Body>
int fork_ranks(int ranks, Body body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      // The rank gets SIGKILL when the parent ends, so nothing stays behind.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(body(rank));
    }
    if (child > 0) children.push_back(child);
  }
  int worst = static_cast<int>(children.size()) == ranks ? 0 : 1;
  for (int left = static_cast<int>(children.size()); left > 0; --left) {
    int state = 0;
    // In the order in which they end: the first failure is found while the others still run.
    std::erase(children, ::wait(&state));
    if (state == 0) continue;
    worst = 1;
    for (const pid_t child : children) ::kill(child, SIGKILL);
  }
  return worst;
}

}  // namespace compare
