// One rank of bench/scale/lose.py: negotiates and sums until another rank is lost, and prints when it knows which one.
//
//   READY            all ranks have summed once
//   KNEW 3 T 7 CODE  rank 3 knew at T ns (CLOCK_MONOTONIC) that rank 7 was lost
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <farandole/farandole.hpp>
#include <string>

namespace {

long long now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Names are fresh in each step, so that ranks negotiate each time; then an ordered sum. False if a sum is wrong.
bool run_step(const fdl::World& world, fdl::Comm& comm, int step) {
  float named[2] = {1, 2};
  fdl::Batch batch;
  batch.allreduce("a" + std::to_string(step), &named[0], 1, FDL_SUM);
  batch.allreduce("b" + std::to_string(step), &named[1], 1, FDL_SUM);
  batch.submit(fdl_group_all(world.get())).wait();
  float one = 1;
  comm.allreduce(&one, 1);
  const auto size = static_cast<float>(world.size());
  return named[0] == size && named[1] == 2 * size && one == size;
}

}  // namespace

int main() {
  int rank = -1;
  try {
    const fdl::World world;
    rank = world.rank();
    fdl::Comm comm(world.all());
    for (int step = 0;; ++step) {
      if (!run_step(world, comm, step)) {
        std::printf("WRONG %d\n", rank);
        std::fflush(stdout);
        std::_Exit(1);
      }
      if (step == 0) std::printf("READY\n");
      if (step == 0) std::fflush(stdout);
    }
  } catch (const fdl::Error& error) {
    const long long now = now_ns();
    std::printf("KNEW %d %lld %d %d %s\n", rank, now, error.culprit_rank, static_cast<int>(error.code), error.what());
    std::fflush(stdout);
  }
  std::_Exit(0);
}
