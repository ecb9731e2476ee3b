// One rank of bench/scale/run.sh: starts a world, runs a few allreduces, and prints what that took, in one line.
//   scale_rank BYTES [LOST_RANK]     with a rank to lose, it kills itself and the others print when they know
//
// START_NS in the environment is the time (CLOCK_MONOTONIC) at which the first process was started.
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <farandole/farandole.hpp>
#include <vector>

namespace {

long long now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int open_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  int count = -1;  // the folder itself
  while (const dirent* entry = ::readdir(folder)) count += entry->d_name[0] != '.';
  ::closedir(folder);
  return count;
}

long memory_kib(const char* name) {
  std::FILE* file = std::fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  long found = -1;
  while (file != nullptr && std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, name, &found) == 1) break;
  }
  if (file != nullptr) std::fclose(file);
  return found;
}

// User and system time of this process so far.
double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGTERM, SIG_IGN);  // the launcher sends it to all ranks when the first one has died
  const long long begun = std::atoll(std::getenv("START_NS"));
  const auto count = static_cast<std::size_t>(argc > 1 ? std::atol(argv[1]) : 4) / sizeof(float);
  const int lost = argc > 2 ? std::atoi(argv[2]) : -1;
  const fdl::World world;
  fdl::Comm comm(world.all());
  const long long started = now_ns();
  const double start_cpu_s = cpu_seconds();
  std::vector<float> data(count, 1);
  comm.allreduce(data.data(), count);
  const long long first = now_ns();
  if (data[0] != static_cast<float>(world.size())) return 1;
  // All of this rank's memory, and what of it no other process uses.
  std::printf("SCALE %d %.3f %.3f %ld %ld %d %.4f\n", world.rank(), static_cast<double>(started - begun) / 1e9,
              static_cast<double>(first - started) / 1e9, memory_kib("Rss: %ld kB"),
              memory_kib("Private_Dirty: %ld kB"), open_descriptors(), start_cpu_s);
  std::fflush(stdout);
  float one = 1;
  if (lost < 0) return 0;
  try {
    comm.allreduce(&one, 1);  // all ranks have printed
    if (world.rank() == lost) {
      std::printf("KILLED %lld\n", now_ns());
      std::fflush(stdout);
      ::kill(::getpid(), SIGKILL);
    }
    while (true) comm.allreduce(&one, 1);
  } catch (const fdl::Error& error) {
    std::printf("KNEW %d %lld %d\n", world.rank(), now_ns(), error.culprit_rank);
    std::fflush(stdout);
  }
  std::_Exit(0);  // the launcher ends the others at the first error
}
