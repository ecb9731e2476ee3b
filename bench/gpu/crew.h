// WorkerGroup: the ranks of one benchmark, processes that are forked before anything of a driver or a library is
// opened.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <vector>

#include "bench/gpu/ending.h"

namespace gpu_bench {

// The process that makes it is rank 0; the others end with it.
class WorkerGroup {
 public:
  explicit WorkerGroup(int size) {
    if (size > 1) ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);  // where there are fewer GPUs than ranks
    for (int next = 1; next < size && rank_ == 0; ++next) {
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
      for (const int writer : writers_) ::close(writer);
      ::close(ends[1]);
      rank_ = next;
      reader_ = ends[0];
    }
  }

  int rank() const { return rank_; }

  // What rank 0 has, on all. Where rank 0 has ended instead, so do the others.
  template <class T>
  void tell(T& value) {
    for (const int writer : writers_) {
      if (::write(writer, &value, sizeof value) != sizeof value) end(kWrong, "a rank cannot be told");
    }
    if (rank_ != 0 && ::read(reader_, &value, sizeof value) != sizeof value) std::exit(kNone);
  }

  // What the process is to end with: on rank 0, once the others have ended.
  int outcome() {
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
