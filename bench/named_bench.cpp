// Named operations, timed: one of 4 bytes, a step of many tensors, and what an idle job costs.
//   farandole run -np 2 build/bin/named_bench [idle seconds]
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <farandole/farandole.hpp>
#include <string>
#include <vector>

namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_s() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

uint64_t wakeups(const fdl::World& world) {
  fdl_counters counters{};
  counters.struct_size = sizeof counters;
  fdl::check(fdl_metrics(world.get(), &counters));
  return counters.wakeups;
}

struct Times {
  double median_us;
  double least_us;
};

template <typename Body>
Times time_of(int repetitions, Body body) {
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    const double begin = now_us();
    body();
    times.push_back(now_us() - begin);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

// 161 tensors of the sizes of a residual network's parameters, 102 MB in all: a few large ones and many small.
std::vector<std::size_t> gradient_sizes() {
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 107; ++i) sizes.push_back(64u << (i % 6));
  for (int i = 0; i < 53; ++i) sizes.push_back(16384u << (i % 7));
  std::size_t sum = 0;
  for (const std::size_t size : sizes) sum += size;
  sizes.push_back(25'500'000 - sum);
  return sizes;
}

void print(const fdl::World& world, const char* what, Times times) {
  if (world.rank() == 0) std::printf("%-44s %12.1f us median %12.1f us min\n", what, times.median_us, times.least_us);
}

}  // namespace

int main(int argc, char** argv) {
  fdl::World world;
  float four_bytes = 1;
  const auto one = [&] { fdl::Batch().allreduce("four bytes", &four_bytes, 1).submit(world.all()).wait(); };
  time_of(200, one);
  print(world, "one named allreduce of 4 bytes, blocking", time_of(2000, one));

  std::vector<std::vector<float>> gradients;
  std::size_t elements = 0;
  for (const std::size_t size : gradient_sizes()) {
    gradients.emplace_back(size, 1.0f);
    elements += size;
  }
  const auto step = [&] {
    std::vector<fdl::Handle> handles;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      handles.push_back(fdl::Batch()
                            .allreduce("gradient " + std::to_string(i), gradients[i].data(), gradients[i].size())
                            .submit(world.all()));
    }
    for (const fdl::Handle& handle : handles) handle.wait();
  };
  time_of(3, step);
  print(world, "161 tensors, 102 MB, submitted and waited for", time_of(15, step));

  fdl::Comm comm(world.all());
  std::vector<float> flat(elements, 1.0f);
  const auto whole = [&] { comm.allreduce(flat.data(), flat.size(), FDL_AVERAGE); };
  time_of(3, whole);
  print(world, "the same bytes in one ordered allreduce", time_of(15, whole));

  const int idle_s = argc > 1 ? std::atoi(argv[1]) : 10;
  comm.barrier();
  const uint64_t before = wakeups(world);
  const double cpu_before = cpu_s();
  sleep(static_cast<unsigned>(idle_s));
  const double cpu = cpu_s() - cpu_before;
  // Asking wakes the loop once; everything else would be the job's own doing.
  std::printf("rank %d, idle for %d s: %.6f s of CPU, %llu wake-ups\n", world.rank(), idle_s, cpu,
              static_cast<unsigned long long>(wakeups(world) - before));
}
