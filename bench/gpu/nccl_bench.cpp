// Measures our allreduce by NCCL beside a bare ncclAllReduce, in turns in the same process, stream and buffers.
//
//   nccl_bench [--ranks N] [--direct] [--check] [--most BYTES] [--json FILE] [--library L] [--nccl L]
//
// Several ranks are processes, which share the available GPUs (NCCL 2.30 and newer). --direct, or
// FARANDOLE_NCCL_CALLS=direct: calls that always queue at once. --check: checks results
// only. The exit code is 3 without a GPU or NCCL, and 4 if a result is wrong.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "bench/gpu/bench_gpu.h"
#include "bench/gpu/turns.h"
#include "bench/gpu/words.h"
#include "bench/gpu/worker_group.h"
#include "cli/simulate/resnet50.h"
#include "transports/nccl/nccl_device_library.h"

namespace {

using namespace fdl;
using namespace gpu_bench;

constexpr int kRounds = 7;
constexpr std::size_t kRotating = 256_MiB;  // at most; exceeds the caches of any GPU

struct Options {
  Config config;
  int ranks = 1;
  bool check_only = false;
  std::size_t most = 256_MiB;
  std::string json;
};

// Created by rank 0 and sent to the others; each identifies one communicator.
struct Ids {
  DeviceLibrary::Id ours;
  DeviceLibrary::Id bare;
};

// One rank with both communicators.
class Rank {
 public:
  Rank(const Options& options, int of_rank, const Ids& ids)
      : rank(of_rank),
        gpu(options.config, of_rank),
        library(stop_unless(open_nccl(options.config, options.ranks > 1), kNone)) {
    std::vector<Member> members;
    for (int r = 0; r < options.ranks; ++r) members.push_back({r, "host", "", 0});
    // Blocks until all ranks have joined; the bare communicator is created after ours on every rank.
    collectives = stop_unless(library->join(ids.ours, rank, members, gpu.device(), Deadline::after_seconds(60)));
    bare = std::make_unique<BareNccl>(options.config, gpu, rank, options.ranks, ids.bare);
  }

  // In place, as frameworks reduce gradients.
  void our_sum(void* memory, std::size_t count) {
    Completion completion;
    collectives->start({.count = count, .device = &gpu.device(), .stream = gpu.stream()}, {memory, memory}, completion);
    drive(completion);
  }

  const int rank;
  BenchGpu gpu;
  std::shared_ptr<DeviceLibrary> library;
  std::unique_ptr<BareNccl> bare;
  std::unique_ptr<Collectives> collectives;

 private:
  // Returns when the call is queued on the stream, as ncclAllReduce() does.
  void drive(Completion& completion) {
    while (!completion.done) collectives->progress();
    stop_unless(completion.status);
  }
};

void report(const Options& options, const char* what, std::size_t bytes, const Times& ours, const Times& bare) {
  const double n = options.ranks;
  // The part of the bytes that each rank sends and receives in an allreduce, by which NCCL's tests compute the bus
  // bandwidth.
  const double share = n > 1 ? 2 * (n - 1) / n : 1;
  const auto busbw = [&](double us) { return static_cast<double>(bytes) * share / us / 1000; };
  std::printf(
      "%-22s %10zu B   ours %10.2f us (least %10.2f) %8.2f GB/s   bare %10.2f us (least %10.2f) %8.2f GB/s   %.3f\n",
      what, bytes, ours.median_us, ours.least_us, busbw(ours.median_us), bare.median_us, bare.least_us,
      busbw(bare.median_us), bare.median_us / ours.median_us);
  if (options.json.empty()) return;
  std::FILE* file = std::fopen(options.json.c_str(), "a");
  if (file == nullptr) end(kWrong, "cannot write " + options.json);
  std::fprintf(file,
               "{\"bench\":\"nccl\",\"what\":\"%s\",\"calls\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"ours_us\":%.3f,"
               "\"ours_least_us\":%.3f,\"bare_us\":%.3f,\"bare_least_us\":%.3f,\"ours_busbw\":%.3f,"
               "\"bare_busbw\":%.3f}\n",
               what, options.config.nccl_calls.c_str(), options.ranks, bytes, ours.median_us, ours.least_us,
               bare.median_us, bare.least_us, busbw(ours.median_us), busbw(bare.median_us));
  std::fclose(file);
}

// The gradients of ResNet-50 with sizes divided by `divisor`, each at least one element.
struct Gradients {
  Gradients(Rank& self, std::size_t divisor) {
    for (const std::size_t size : fdl::resnet50()) {
      const std::size_t count = std::max<std::size_t>(size / divisor, 1);
      std::byte* tensor = self.gpu.allocate(count * 4);
      segments.push_back({tensor, total, count});
      total += count;
    }
  }
  // Packs the gradients, sums them as one vector, and unpacks them.
  void sum_packed(Rank& self, std::byte* memory) const {
    Device& device = self.gpu.device();
    stop_unless(device.pack(self.gpu.stream(), segments, Dtype::float32, memory, Dtype::float32, 1));
    self.our_sum(memory, total);
    stop_unless(device.unpack(self.gpu.stream(), segments, Dtype::float32, memory, Dtype::float32, 1));
  }

  std::vector<DeviceSegment> segments;
  std::size_t total = 0;
};

void check(Rank& self, int ranks) {
  constexpr std::size_t kCount = 1000;
  std::byte* memory = self.gpu.allocate(kCount * 4);
  for (const bool ours : {true, false}) {
    self.gpu.put(memory, values_of(self.rank, kCount));
    ours ? self.our_sum(memory, kCount) : self.bare->sum(memory, kCount);
    if (!is_sum(self.gpu.get(memory, kCount), ranks)) end(kWrong, ours ? "our sum is wrong" : "the bare sum is wrong");
  }
  const Gradients gradients(self, 1000);
  std::byte* packed = self.gpu.allocate(gradients.total * 4);
  for (const DeviceSegment& segment : gradients.segments)
    self.gpu.put(segment.tensor, values_of(self.rank, segment.count));
  gradients.sum_packed(self, packed);
  for (const DeviceSegment& segment : gradients.segments) {
    if (!is_sum(self.gpu.get(segment.tensor, segment.count), ranks)) end(kWrong, "a packed sum is wrong");
  }
}

// Compares packed gradients with one bare sum of as many bytes.
void bench_fusion(Rank& self, const Options& options, std::byte* memory) {
  const Gradients gradients(self, 1);
  const Way fused = [&](int) { gradients.sum_packed(self, memory); };
  const Way bare = [&](int) { self.bare->sum(memory, gradients.total); };
  const auto times = measure({fused, bare}, kRounds, 5, true, [&] { self.gpu.finish(); });
  if (self.rank != 0) return;
  report(options, "resnet-50, packed", gradients.total * 4, times[0], times[1]);
}

// From 8 bytes in steps of 8x; places are at least a page apart.
void bench_sizes(Rank& self, const Options& options, std::byte* memory, std::size_t rotating) {
  for (std::size_t bytes = 8; bytes <= options.most; bytes *= bytes == 128_MiB ? 2 : 8) {
    // Buffers rotate, so that a small one is not always in the device's cache.
    const std::size_t places = std::max<std::size_t>(rotating / std::max<std::size_t>(bytes, 4096), 1);
    const auto place = [&](int call) {
      return memory + static_cast<std::size_t>(call) % places * std::max<std::size_t>(bytes, 4096);
    };
    const Way ours = [&](int call) { self.our_sum(place(call), bytes / 4); };
    const Way bare = [&](int call) { self.bare->sum(place(call), bytes / 4); };
    const auto times = measure({ours, bare}, kRounds, bytes <= 1_MiB ? 100 : 8, true, [&] { self.gpu.finish(); });
    if (self.rank == 0) report(options, "allreduce", bytes, times[0], times[1]);
  }
}

void run(const Options& options, int rank, const Ids& ids) {
  Rank self(options, rank, ids);
  if (rank == 0) {
    std::printf("%s, %s, %d rank%s, %s calls, medians of %d rounds in turns\n", describe_nccl(options.config).c_str(),
                std::string(self.gpu.device().name()).c_str(), options.ranks, options.ranks == 1 ? "" : "s",
                options.config.nccl_calls.c_str(), kRounds);
  }
  check(self, options.ranks);
  if (rank == 0) std::printf("all sums are right\n");
  if (options.check_only) return;
  // At least 1 MiB and at most 256 MiB, so that a run with a small --most needs little memory.
  const std::size_t rotating = std::min(kRotating, std::max(1_MiB, 256 * options.most));
  std::byte* memory = self.gpu.allocate(rotating);
  bench_sizes(self, options, memory, rotating);
  if (options.most >= 128_MiB) bench_fusion(self, options, memory);
}

Options parse(int argc, char** argv) {
  Options options;
  std::map<std::string, std::string> knobs;
  const auto knob = [&](const char* name) { return [&knobs, name](const std::string& value) { knobs[name] = value; }; };
  read_words(argc, argv,
             {word_with_value("--ranks", [&](const std::string& value) { options.ranks = std::atoi(value.c_str()); }),
              word_alone("--direct", [&] { knobs["nccl_calls"] = "direct"; }),
              word_alone("--check", [&] { options.check_only = true; }),
              word_with_value(
                  "--most", [&](const std::string& value) { options.most = stop_unless(parse_bytes(value), kUsage); }),
              word_with_value("--json", [&](const std::string& value) { options.json = value; }),
              word_with_value("--library", knob("cuda_library")), word_with_value("--nccl", knob("nccl_library"))});
  options.config = stop_unless(Config::read(Environment::of_process(), knobs));
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines appear at once in a pipe too
  const Options options = parse(argc, argv);
  WorkerGroup workers(options.ranks);
  Ids ids;
  if (workers.rank() == 0) {
    for (auto* id : {&ids.ours, &ids.bare}) *id = make_nccl_id(options.config, options.ranks);
  }
  workers.broadcast(ids);
  run(options, workers.rank(), ids);
  return workers.outcome();
}
