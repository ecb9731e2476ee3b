// Runs the ranks of one measurement. Processes are forked, so that they inherit the parsed command line.
#include "cli/local_ranks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

#include "cli/subcommands.h"
#include "system/handshake.h"
#include "system/process/process.h"

namespace fdl {
namespace {

int run_threads(int ranks, const std::function<int(int)>& body) {
  std::vector<int> codes(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { codes[static_cast<std::size_t>(rank)] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(codes.begin(), codes.end());
}

int run_processes(int ranks, const std::function<int(int)>& body) {
  const pid_t parent = ::getpid();
  std::vector<pid_t> children;
  int worst = kExitOk;
  std::fflush(stdout);  // buffered text would be written once by each child
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(kExitBug);  // the parent died before prctl() took effect
      const int code = code_after_output(body(rank));
      std::fflush(stderr);
      ::_exit(code);
    }
    if (child < 0) {
      const Status refused = fork_failure("starting rank " + std::to_string(rank));
      std::fprintf(stderr, "farandole: %s\n", refused.text().c_str());
      for (const pid_t other : children) ::kill(other, SIGTERM);
      worst = exit_code_of_system(refused);
      break;
    }
    children.push_back(child);
  }
  for (std::size_t left = children.size(); left > 0; --left) {
    int state = 0;
    const pid_t ended = ::wait(&state);
    std::erase(children, ended);
    const int code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
    // The first failure decides the code; the ends of the ranks that are terminated below do not count.
    if (code == kExitOk || worst != kExitOk) continue;
    worst = code;
    for (const pid_t other : children) ::kill(other, SIGTERM);
  }
  return worst;
}

}  // namespace

std::string fresh_rendezvous(bool threads, const std::string& name) {
  return (threads ? "memory://" : "unix:@farandole-") + name + "-" + random_hex(8);
}

int run_local_ranks(int ranks, bool threads, const std::function<int(int rank)>& body) {
  return threads ? run_threads(ranks, body) : run_processes(ranks, body);
}

int exit_code_of(fdl_result failure) {
  switch (failure) {
    case FDL_INTERNAL:
      return kExitBug;
    case FDL_TIMEOUT:
      return kExitRendezvous;
    case FDL_PEER_LOST:
    case FDL_ABORTED:
    case FDL_SHUT_DOWN:
    case FDL_TRANSPORT:
      return kExitPeerLost;
    default:
      return kExitBadEnvironment;
  }
}

}  // namespace fdl
