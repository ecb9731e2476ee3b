// Fork ranks: the ranks of one host as children of one process, and a core of its own for each where there are enough.
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

// body(rank) gives the exit code; the worst of them comes back. None outlives this process; one that fails ends all.
template <typename Body>
int fork_ranks(int ranks, Body body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(body(rank));
    }
    if (child > 0) children.push_back(child);
  }
  int worst = static_cast<int>(children.size()) == ranks ? 0 : 1;
  for (int left = static_cast<int>(children.size()); left > 0; --left) {
    int state = 0;
    std::erase(children, ::wait(&state));
    if (state == 0) continue;
    worst = 1;
    for (const pid_t child : children) ::kill(child, SIGKILL);
  }
  return worst;
}

}  // namespace compare
