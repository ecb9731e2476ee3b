// Measures named operations: one of 4 bytes, the gradients of two networks, the cost of idling, and the start.
//   farandole run -np 2 build/bin/named_bench [--json] [--idle seconds] [--only part,part...]
// Parts: start, small, resnet, bert, control, idle.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <farandole/farandole.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "bench/times.h"

namespace {

using bench::Times;

struct Options {
  bool json = false;
  int idle_s = 10;
  std::string only;
  bool has(const char* part) const { return only.empty() || only.find(part) != std::string::npos; }
};

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs `body` so many times; every run counts, so callers warm up with a call of their own.
template <typename Body>
Times time_of(int repetitions, Body body) {
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    const double begin = now_us();
    body();
    times.push_back(now_us() - begin);
  }
  return Times::of(std::move(times));
}

// User and system time of all threads of this process, in seconds.
double cpu_s() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

// struct_size states which members this program was compiled with.
fdl_counters counters_of(const fdl::World& world) {
  fdl_counters counters{};
  counters.struct_size = sizeof counters;
  fdl::check(fdl_metrics(world.get(), &counters));
  return counters;
}

// ---- Output ----

// Rank 0 alone prints.
class Report {
 public:
  Report(const fdl::World& world, bool json) : prints_(world.rank() == 0), ranks_(world.size()), json_(json) {}

  // One line in both forms; the keys of the JSON objects are those of the other benchmarks.
  void times(const char* what, std::size_t bytes, Times times) const {
    if (!prints_) return;
    if (json_) {
      std::printf(
          "{\"what\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"time_us_median\": %.2f, \"time_us_min\": %.2f}\n", what,
          ranks_, bytes, times.median_us, times.least_us);
    } else {
      std::printf("%-52s %12.1f us median %12.1f us min\n", what, times.median_us, times.least_us);
    }
    std::fflush(stdout);
  }
  void number(const char* what, double value, const char* unit) const {
    if (!prints_) return;
    if (json_) {
      std::printf("{\"what\": \"%s\", \"ranks\": %d, \"value\": %g, \"unit\": \"%s\"}\n", what, ranks_, value, unit);
    } else {
      std::printf("%-52s %12.6g %s\n", what, value, unit);
    }
    std::fflush(stdout);
  }

 private:
  bool prints_;
  int ranks_;
  bool json_;
};

// ---- The gradients of two networks ----

// 161 tensors, 102 MB: a few large ones and many small ones, similar to ResNet-50's.
std::vector<std::size_t> resnet_sizes() {
  std::vector<std::size_t> sizes;
  // The last tensor makes the sum 25.5 million, about the parameters of ResNet-50.
  for (int i = 0; i < 107; ++i) sizes.push_back(64u << (i % 6));
  for (int i = 0; i < 53; ++i) sizes.push_back(16384u << (i % 7));
  const std::size_t sum = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  sizes.push_back(25'500'000 - sum);
  return sizes;
}

// BERT-base's 199 tensors, 438 MB: an embedding of 94 MB, twelve layers of sixteen tensors, and the first and last
// ones.
std::vector<std::size_t> bert_sizes() {
  // Vocabulary of 30522, 512 positions, 2 segment types, width 768, inner width 4 * 768.
  constexpr std::size_t kWidth = 768;
  std::vector<std::size_t> sizes{30522 * kWidth, 512 * kWidth, 2 * kWidth, kWidth, kWidth};
  for (int layer = 0; layer < 12; ++layer) {
    for (int square = 0; square < 4; ++square) sizes.insert(sizes.end(), {kWidth * kWidth, kWidth});
    sizes.insert(sizes.end(), {kWidth, kWidth, 4 * kWidth * kWidth, 4 * kWidth, 4 * kWidth * kWidth, kWidth, kWidth});
    sizes.push_back(kWidth);
  }
  sizes.insert(sizes.end(), {kWidth * kWidth, kWidth});
  return sizes;
}

// One training step: submits all tensors in the order of a backward pass, last tensor first, then waits for all.
class Step {
 public:
  Step(const char* name, std::vector<std::size_t> sizes)
      : sizes_(std::move(sizes)), memory_(std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0}), 1.0f) {
    // All gradients lie in one block, so the ordered allreduce can run over the same memory. The names differ between
    // networks, because a name is in flight once.
    std::size_t offset = memory_.size();
    for (std::size_t i = sizes_.size(); i-- > 0;) {
      offset -= sizes_[i];
      batches_.emplace_back();
      batches_.back().allreduce(std::string(name) + " gradient " + std::to_string(i), memory_.data() + offset,
                                sizes_[i]);
    }
  }
  void run(fdl_group* group) {
    // Frees the handles of the last step; all of them are done.
    handles_.clear();
    for (const fdl::Batch& batch : batches_) handles_.push_back(batch.submit(group));
    for (const fdl::Handle& handle : handles_) handle.wait();
  }
  std::vector<float>& memory() { return memory_; }
  std::size_t bytes() const { return memory_.size() * sizeof(float); }

 private:
  std::vector<std::size_t> sizes_;
  std::vector<float> memory_;
  std::vector<fdl::Batch> batches_;
  std::vector<fdl::Handle> handles_;
};

// Compares named operations with one ordered allreduce over the same memory.
void time_network(const fdl::World& world, const Report& report, const char* name, std::vector<std::size_t> sizes,
                  int repetitions) {
  Step step(name, std::move(sizes));
  fdl::Comm comm(world.all());
  std::vector<float>& all = step.memory();
  const auto named = [&] { step.run(world.all()); };
  const auto whole = [&] { comm.allreduce(all.data(), all.size(), FDL_AVERAGE); };
  // Warm-up: pages are touched, connections open, and the ranks cache the requests.
  time_of(2, named);
  time_of(1, whole);
  const Times of_named = time_of(repetitions, named);
  const Times of_whole = time_of(repetitions, whole);
  const std::string text(name);
  report.times((text + ", submitted and waited for").c_str(), step.bytes(), of_named);
  report.times((text + ", the same bytes as one ordered allreduce").c_str(), step.bytes(), of_whole);
  report.number((text + ", named / ordered, medians").c_str(), of_named.median_us / of_whole.median_us, "");
}

// ---- The parts ----

void time_start(bool json) {
  // Each world finds the coordinator, connects to all ranks and ends again; the process stays the same.
  const Times times = time_of(20, [] { const fdl::World world; });
  Report(fdl::World(), json).times("init and shutdown", 0, times);
}

void time_small(const fdl::World& world, const Report& report) {
  float value = 1;
  fdl::Comm comm(world.all());
  fdl::Batch batch;
  batch.allreduce("four bytes", &value, 1);
  // The same operation three ways: without agreement, with agreement in the calling thread, and handed to the progress
  // thread.
  const auto ordered = [&] { comm.allreduce(&value, 1, FDL_AVERAGE); };
  const auto run = [&] { batch.run(world.all()); };
  const auto submit = [&] { batch.submit(world.all()).wait(); };
  time_of(200, ordered);
  report.times("4 bytes, ordered", 4, time_of(5000, ordered));
  time_of(200, run);
  report.times("4 bytes, named, blocking", 4, time_of(5000, run));
  time_of(200, submit);
  report.times("4 bytes, named, submitted and waited for", 4, time_of(5000, submit));
}

// In locked order steady steps should need no control messages.
void count_control(const fdl::World& world, const Report& report) {
  constexpr int kSteps = 1000;
  Step step("small", std::vector<std::size_t>(161, 64));
  // More than FARANDOLE_LOCK_AFTER (4) equal steps, after which the order is locked.
  for (int i = 0; i < 20; ++i) step.run(world.all());
  const fdl_counters before = counters_of(world);
  const Times times = time_of(kSteps, [&] { step.run(world.all()); });
  const fdl_counters after = counters_of(world);
  fdl::Comm(world.all()).barrier();  // a rank that leaves sends control messages
  report.times("161 tensors of 256 bytes, submitted and waited for", step.bytes(), times);
  report.number("control messages of rank 0 in 1000 steady steps",
                static_cast<double>(after.control_messages - before.control_messages), "");
  report.number("buckets in 1000 steady steps", static_cast<double>(after.buckets - before.buckets), "");
}

// An idle job should send nothing and use no CPU time.
void watch_idle(const fdl::World& world, const Report& report, int idle_s) {
  fdl::Comm(world.all()).barrier();
  // The barrier's last messages and the unlocking of the order are over after 50 ms.
  usleep(50'000);
  const fdl_counters before = counters_of(world);
  usleep(50'000);  // reading the counters wakes the progress thread
  const double cpu_before = cpu_s();
  sleep(static_cast<unsigned>(idle_s));
  const double cpu = cpu_s() - cpu_before;
  const fdl_counters after = counters_of(world);
  report.number("idle: CPU of rank 0, percent", 100 * cpu / idle_s, "%");
  // Includes one wake-up for the reading before.
  report.number("idle: wake-ups of rank 0", static_cast<double>(after.wakeups - before.wakeups), "");
  report.number("idle: control messages of rank 0",
                static_cast<double>(after.control_messages - before.control_messages), "");
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      options.json = true;
    } else if (word == "--idle" && i + 1 < argc) {
      options.idle_s = std::atoi(argv[++i]);
    } else if (word == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else {
      std::fprintf(stderr, "named_bench [--json] [--idle seconds] [--only start,small,resnet,bert,control,idle]\n");
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  // First, because a second world beside an open one would be another measurement.
  if (options.has("start")) time_start(options.json);
  const fdl::World world;
  const Report report(world, options.json);
  if (options.has("small")) time_small(world, report);
  if (options.has("resnet")) time_network(world, report, "ResNet-50 (161 tensors, 102 MB)", resnet_sizes(), 15);
  if (options.has("bert")) time_network(world, report, "BERT-base (199 tensors, 438 MB)", bert_sizes(), 5);
  if (options.has("control")) count_control(world, report);
  if (options.has("idle")) watch_idle(world, report, options.idle_s);
}
