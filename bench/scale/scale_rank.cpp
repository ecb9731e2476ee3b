// Ranks of bench/scale/run.sh: each starts a world, runs a few allreduces, and prints what that took, in one line.
//   scale_rank BYTES [LOST_RANK]     with a rank to lose, its process kills itself and the others print when they know
//
// One process is one rank, or with THREADS in the environment so many, each in a thread of its own. Then PLACE is the
// rendezvous and KEY the job key of the ranks, because the launcher knows only processes; memory, descriptors and
// processor time are those of the process, divided by its ranks.
//
// START_NS in the environment is the time (CLOCK_MONOTONIC) at which the first process was started. With NAMED_STEPS,
// the rank also sums 20 named tensors as often, and prints the time of the first and of the last step, and how many
// control messages it sent in each.
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <farandole/farandole.hpp>
#include <string>
#include <thread>
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

uint64_t control_messages(const fdl::World& world) {
  fdl_counters counters{};
  counters.struct_size = sizeof counters;
  return fdl_metrics(world.get(), &counters) == FDL_OK ? counters.control_messages : 0;
}

// Sums 20 named tensors in place; false if a sum is wrong.
bool run_named_step(const fdl::World& world) {
  constexpr std::size_t kTensors = 20;
  static const int64_t shape = 16;
  std::vector<std::vector<float>> tensors(kTensors, std::vector<float>(static_cast<std::size_t>(shape), 1));
  std::vector<std::string> names(kTensors);
  std::vector<fdl_handle*> handles(kTensors);
  for (std::size_t i = 0; i < kTensors; ++i) {
    names[i] = "tensor " + std::to_string(i);
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.name = names[i].c_str();
    operation.input.data = operation.output = tensors[i].data();
    operation.input.shape = &shape;
    operation.input.ndim = 1;
    operation.op = FDL_SUM;
    if (fdl_submit(fdl_group_all(world.get()), &operation, 1, &handles[i]) != FDL_OK) return false;
  }
  bool right = true;
  for (std::size_t i = 0; i < kTensors; ++i) {
    right &= fdl_wait_handle(handles[i], -1) == FDL_OK && tensors[i].back() == static_cast<float>(world.size());
    fdl_handle_free(handles[i]);
  }
  return right;
}

// Prints one line, or nothing without steps; false if a step failed.
bool run_named_steps(const fdl::World& world, int steps) {
  double seconds[2] = {};
  uint64_t messages[2] = {};
  for (int step = 0; step < steps; ++step) {
    const uint64_t before = control_messages(world);
    const long long begun = now_ns();
    if (!run_named_step(world)) return false;
    const int which = step == 0 ? 0 : 1;
    seconds[which] = static_cast<double>(now_ns() - begun) / 1e9;
    messages[which] = control_messages(world) - before;
  }
  if (steps == 0) return true;
  std::printf("NAMED %d %.4f %.4f %llu %llu\n", world.rank(), seconds[0], seconds[1],
              static_cast<unsigned long long>(messages[0]), static_cast<unsigned long long>(messages[1]));
  std::fflush(stdout);
  return true;
}

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// The world of one rank of a process with `threads` ranks.
fdl::World start_world(int thread, int threads) {
  if (threads == 1) return fdl::World();
  fdl_world_options options;
  fdl_world_options_init(&options);
  options.rank = number("FARANDOLE_RANK", 0) * threads + thread;
  options.size = number("FARANDOLE_SIZE", 1) * threads;
  options.rendezvous = std::getenv("PLACE");
  options.job_key = std::getenv("KEY");
  return fdl::World(&options);
}

// Returns the exit code of the process. It ends by _Exit() where a rank is to be lost.
int run_rank(int thread, int threads, std::size_t count, int lost) {
  const long long begun = std::atoll(std::getenv("START_NS"));
  const fdl::World world = start_world(thread, threads);
  fdl::Comm comm(world.all());
  const long long started = now_ns();
  const double start_cpu_s = cpu_seconds() / threads;
  std::vector<float> data(count, 1);
  comm.allreduce(data.data(), count);
  const long long first = now_ns();
  if (data[0] != static_cast<float>(world.size())) return 1;
  // All of this rank's memory, and what of it no other process uses.
  std::printf("SCALE %d %.3f %.3f %ld %ld %d %.4f\n", world.rank(), static_cast<double>(started - begun) / 1e9,
              static_cast<double>(first - started) / 1e9, memory_kib("Rss: %ld kB") / threads,
              memory_kib("Private_Dirty: %ld kB") / threads, open_descriptors() / threads, start_cpu_s);
  std::fflush(stdout);
  if (!run_named_steps(world, number("NAMED_STEPS", 0))) return 1;
  float one = 1;
  try {
    comm.allreduce(&one, 1);  // all ranks have printed: one that leaves earlier ends the locked order of the others
    if (lost < 0) return 0;
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
  if (threads == 1) std::_Exit(0);  // the launcher ends the others at the first error
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("START_NS") == nullptr) {
    std::fprintf(stderr, "this is a rank of bench/scale/run.sh, which starts it\n");
    return 2;
  }
  std::signal(SIGTERM, SIG_IGN);  // the launcher sends it to all ranks when the first one has died
  const auto count = static_cast<std::size_t>(argc > 1 ? std::atol(argv[1]) : 4) / sizeof(float);
  const int lost = argc > 2 ? std::atoi(argv[2]) : -1;
  const int threads = number("THREADS", 1);
  if (threads == 1) return run_rank(0, 1, count, lost);
  std::atomic<int> code{0};
  std::vector<std::thread> ranks;
  for (int thread = 0; thread < threads; ++thread) {
    ranks.emplace_back([=, &code] {
      try {
        if (const int own = run_rank(thread, threads, count, lost); own != 0) code = own;
      } catch (const fdl::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        code = 1;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  std::_Exit(code);
}
