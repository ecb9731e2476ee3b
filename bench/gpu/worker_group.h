// WorkerGroup runs the ranks of one benchmark as processes, forked before a driver or a library is opened.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <vector>

#include "bench/gpu/ending.h"

namespace gpu_bench {

// The process that constructs it is rank 0; the constructor also returns in each other rank. Those end with rank 0.
class WorkerGroup {
 public:
  explicit WorkerGroup(int size) {
    if (size > 1) ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);  // in case there are fewer GPUs than ranks
    for (int next = 1; next < size && rank_ == 0; ++next) {
      // One pipe for each rank, from rank 0 to it. A read that returns 0 means that rank 0 has ended.
      int ends[2];
      if (::pipe(ends) != 0) end(kWrong, "no pipe");
      const pid_t child = ::fork();
      if (child < 0) end(kWrong, "no process for another rank");
      if (child > 0) {
        ::close(ends[0]);
        children_.push_back(child);
        writers_.push_back(ends[1]);
        continue;
      }
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      // The child has inherited the pipes to the ranks before it; they would stay open if rank 0 ended.
      for (const int writer : writers_) ::close(writer);
      ::close(ends[1]);
      rank_ = next;
      reader_ = ends[0];
    }
  }

  int rank() const { return rank_; }

  // Broadcasts rank 0's value, which must be plain data. If rank 0 has ended instead, so do the others.
  template <class T>
  void broadcast(T& value) {
    for (const int writer : writers_) {
      if (::write(writer, &value, sizeof value) != sizeof value) end(kWrong, "cannot write to another rank");
    }
    if (rank_ != 0 && ::read(reader_, &value, sizeof value) != sizeof value) std::exit(kNone);
  }

  // The exit code of this process. Rank 0 waits for the other ranks first.
  int outcome() {
    // Any failure of a rank is a wrong result, whatever its code.
    int worst = 0;
    for (const pid_t child : children_) {
      int state = 0;
      if (::waitpid(child, &state, 0) == child && state != 0) worst = kWrong;
    }
    return worst;
  }

 private:
  int rank_ = 0;
  int reader_ = -1;
  std::vector<int> writers_;
  std::vector<pid_t> children_;
};

}  // namespace gpu_bench
