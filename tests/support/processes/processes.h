// run_processes() runs ranks as forked processes, so that one can be killed.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <vector>

namespace fdl::test {

// Forks all ranks but the first, which runs in this process. Each must succeed or be killed by SIGKILL.
inline void run_processes(int size, const std::function<void(int)>& work) {
  std::vector<pid_t> children;
  for (int rank = 1; rank < size; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int result = 1;
      try {
        work(rank);
        result = testing::Test::HasFailure() ? 1 : 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      ::_exit(result);
    }
    children.push_back(child);
  }
  work(0);
  for (const pid_t child : children) {
    int state = 0;
    ::waitpid(child, &state, 0);
    EXPECT_TRUE((WIFEXITED(state) && WEXITSTATUS(state) == 0) || (WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL));
  }
}

}  // namespace fdl::test
