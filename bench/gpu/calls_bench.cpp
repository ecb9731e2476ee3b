// Measures the cost of a call: the named and the ordered allreduce through the C API beside a bare ncclAllReduce, in
// turns in the same process and on the same stream. The cases are 8 bytes, several operations that cannot be fused and
// form one group launch, and ResNet-50's gradients.
//
//   calls_bench [--ranks N] [--check] [--json FILE] [--library L] [--nccl L]
//
// Several ranks are processes, which share the available GPUs (NCCL 2.30 and newer). --check: checks results only. The
// exit code is 3 without a GPU or NCCL, and 4 if a result is wrong.
#include <farandole/farandole.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bench/gpu/bench_gpu.h"
#include "bench/gpu/turns.h"
#include "bench/gpu/words.h"
#include "bench/gpu/worker_group.h"
#include "cli/opened_world.h"
#include "cli/simulate/resnet50.h"
#include "transports/nccl/nccl_device_library.h"

namespace {

using namespace fdl;
using namespace gpu_bench;

constexpr int kRounds = 11;

struct Options {
  std::map<std::string, std::string> knobs;
  Config config;
  int ranks = 1;
  bool check_only = false;
  std::string json;
};

// Made by rank 0 and broadcast to all ranks as bytes.
// Plain data, because rank 0 sends it to the others through a pipe.
struct Rendezvous {
  DeviceLibrary::Id id{};
  char folder[64] = "/tmp/calls_bench.XXXXXX";
};

// end() leaves the process by std::exit, which runs no destructor of main().
void remove_at_exit(const char* folder) {
  static auto& removed = *new std::string();
  removed = folder;
  std::atexit([] {
    std::error_code ignored;
    std::filesystem::remove_all(removed, ignored);
  });
}

// The text of the error names the remedy; a failed call is a wrong result of the benchmark.
void must(fdl_result result) {
  if (result != FDL_OK) end(kWrong, fdl_last_error()->text);
}

// This rank's world and its communicator.
class Library {
 public:
  Library(const Options& options, int rank, const Rendezvous& rendezvous) {
    std::vector<const char*> texts;
    for (const auto& [name, value] : options.knobs) texts.insert(texts.end(), {name.c_str(), value.c_str()});
    const std::string place = "file://" + std::string(rendezvous.folder) + "/rendezvous";
    const OpenedWorld::Place here{.rank = rank, .size = options.ranks, .rendezvous = place, .job_key = kJobKey};
    if (!opened_.open(here, texts)) end(kWrong, fdl_last_error()->text);
  }

  fdl_group* all() const { return fdl_group_all(opened_.world); }
  fdl_comm* comm() const { return opened_.comm; }

 private:
  static constexpr const char* kJobKey = "the ranks of one benchmark";
  OpenedWorld opened_;
};

// A tensor of floats that is summed in place, by a named or an ordered operation.
class Tensor {
 public:
  // The memory belongs to `gpu` and lives as long. Both descriptions are filled once: preparing a call is not part of
  // its time.
  Tensor(BenchGpu& gpu, std::size_t count, std::string name)
      : memory_(gpu.allocate(count * 4)), count_(count), shape_(static_cast<int64_t>(count)), name_(std::move(name)) {
    const int index = gpu.device().index();
    fdl_operation_init(&operation_);
    operation_.kind = FDL_NAMED_ALLREDUCE;
    operation_.output = memory_;
    operation_.input = {.data = memory_,
                        .dtype = FDL_FLOAT32,
                        .ndim = 1,
                        .shape = nullptr,
                        .device_kind = FDL_DEVICE_CUDA,
                        .device_index = index,
                        .stream = gpu.stream()};
    fdl_call_init(&call_);
    call_.input = memory_;
    call_.output = memory_;
    call_.count = count;
    call_.device_kind = FDL_DEVICE_CUDA;
    call_.device_index = index;
    call_.stream = gpu.stream();
  }

  std::byte* memory() const { return memory_; }
  std::size_t count() const { return count_; }

  void sum_by_name(fdl_group* group) { must(fdl_run(group, &named(), 1, -1, nullptr)); }
  void sum_in_order(fdl_comm* comm) { must(fdl_call_ex(comm, &call_, nullptr, nullptr)); }
  // Tensors with different factors cannot share a bucket.
  void multiply_by(double factor) { operation_.prescale = factor; }
  // The pointers are set here and not in the constructor, because a Tensor moves when its vector grows.
  const fdl_operation& named() {
    operation_.name = name_.c_str();
    operation_.input.shape = &shape_;
    return operation_;
  }
  void submit(fdl_group* group) { must(fdl_submit(group, &named(), 1, &handle_)); }
  void wait() {
    must(fdl_wait_handle(handle_, -1));
    fdl_handle_free(std::exchange(handle_, nullptr));
  }

 private:
  std::byte* memory_;
  std::size_t count_;
  int64_t shape_;
  std::string name_;
  fdl_operation operation_;
  fdl_call call_;
  fdl_handle* handle_ = nullptr;
};

// One rank with its GPU, a bare communicator and the library.
struct Rank {
  Rank(const Options& of_options, int of_rank, const Rendezvous& rendezvous)
      : options(of_options),
        rank(of_rank),
        gpu(options.config, rank),
        bare(options.config, gpu, rank, options.ranks, rendezvous.id),
        library(options, rank, rendezvous) {}

  // Rank 0 prints its own times; the last column is the cost of the library over bare NCCL.
  void report(const std::string& what, const char* until, std::size_t bytes, const char* way, Times ours,
              Times bare_one) const {
    if (rank != 0) return;
    std::printf("%-24s %10zu B  %-8s %-14s %10.2f us (least %10.2f)   bare %10.2f us (least %10.2f)   %+10.2f us\n",
                what.c_str(), bytes, way, until, ours.median_us, ours.least_us, bare_one.median_us, bare_one.least_us,
                ours.median_us - bare_one.median_us);
    if (options.json.empty()) return;
    // Appended: one file collects the lines of several runs.
    std::FILE* file = std::fopen(options.json.c_str(), "a");
    if (file == nullptr) end(kWrong, "cannot write " + options.json);
    std::fprintf(file,
                 "{\"bench\":\"calls\",\"what\":\"%s\",\"way\":\"%s\",\"until\":\"%s\",\"calls\":\"%s\",\"ranks\":%d,"
                 "\"bytes\":%zu,\"one_shot_bytes\":%zu,"
                 "\"ours_us\":%.3f,\"ours_least_us\":%.3f,\"bare_us\":%.3f,\"bare_least_us\":%.3f}\n",
                 what.c_str(), way, until, options.config.nccl_calls.c_str(), options.ranks, bytes,
                 options.config.one_shot_bytes, ours.median_us, ours.least_us, bare_one.median_us, bare_one.least_us);
    std::fclose(file);
  }

  const Options& options;
  const int rank;
  BenchGpu gpu;
  BareNccl bare;
  Library library;
};

// The gradients of a training step: all are submitted, then all are waited for.
class Gradients {
 public:
  Gradients(BenchGpu& gpu, std::size_t divisor) {
    for (const std::size_t size : fdl::resnet50()) {
      tensors_.emplace_back(gpu, std::max<std::size_t>(size / divisor, 1), "gradient." + std::to_string(count_++));
      elements_ += tensors_.back().count();
    }
  }
  void sum(fdl_group* group) {
    // As a framework's backward pass does, without its computation.
    for (Tensor& tensor : tensors_) tensor.submit(group);
    for (Tensor& tensor : tensors_) tensor.wait();
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  std::size_t elements() const { return elements_; }

 private:
  std::vector<Tensor> tensors_;
  std::size_t elements_ = 0;
  int count_ = 0;
};

// Small sums that cannot be fused, submitted in one call: NCCL gets them as one group launch.
class Mixed {
 public:
  explicit Mixed(BenchGpu& gpu) {
    for (int i = 0; i < kSums; ++i) {
      tensors_.emplace_back(gpu, kCount, "mixed." + std::to_string(i));
      // Powers of two: scaling and its reverse in check() are exact.
      tensors_.back().multiply_by(1.0 / (1 << i));
    }
  }
  void sum(fdl_group* group) {
    std::vector<fdl_operation> operations;
    for (Tensor& tensor : tensors_) operations.push_back(tensor.named());
    must(fdl_run(group, operations.data(), operations.size(), -1, nullptr));
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  static constexpr int kSums = 8;
  static constexpr std::size_t kCount = 256;

 private:
  std::vector<Tensor> tensors_;
};

// Checks every kind of call before it is timed. Three steps let the library detect the repetition.
void check(Rank& self) {
  Tensor tensor(self.gpu, 1000, "checked");
  // Small integers: the sums are exact in any order and are compared with ==.
  const auto expect = [&](const char* what, const std::function<void()>& sum) {
    self.gpu.put(tensor.memory(), values_of(self.rank, tensor.count()));
    sum();
    if (!is_sum(self.gpu.get(tensor.memory(), tensor.count()), self.options.ranks)) {
      end(kWrong, std::string("the sum ") + what + " is wrong");
    }
  };
  expect("by name", [&] { tensor.sum_by_name(self.library.all()); });
  expect("in order", [&] { tensor.sum_in_order(self.library.comm()); });
  expect("of bare NCCL", [&] { self.bare.sum(tensor.memory(), tensor.count()); });
  Mixed mixed(self.gpu);
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < Mixed::kSums; ++i) {
      std::vector<float> values = values_of(self.rank, Mixed::kCount);
      for (float& value : values) value *= static_cast<float>(1 << i);
      self.gpu.put(mixed.tensors()[static_cast<std::size_t>(i)].memory(), values);
    }
    mixed.sum(self.library.all());
    for (const Tensor& one : mixed.tensors()) {
      if (!is_sum(self.gpu.get(one.memory(), one.count()), self.options.ranks))
        end(kWrong, "a sum among others is wrong");
    }
  }
  // A thousandth of the sizes: the check is about the calls and not about the amount.
  Gradients gradients(self.gpu, 1000);
  for (int step = 0; step < 3; ++step) {
    for (const Tensor& one : gradients.tensors()) self.gpu.put(one.memory(), values_of(self.rank, one.count()));
    gradients.sum(self.library.all());
    for (const Tensor& one : gradients.tensors()) {
      if (!is_sum(self.gpu.get(one.memory(), one.count()), self.options.ranks))
        end(kWrong, "a gradient's sum is wrong");
    }
  }
}

// "until host" measures until the call returns; "until device" until the device has finished it.
void bench_small(Rank& self) {
  // 8 bytes: the time is that of the call and not of the data.
  Tensor tensor(self.gpu, 2, "small");
  const auto finish = [&] { self.gpu.finish(); };
  for (const bool to_the_end : {false, true}) {
    const auto then = [&](auto sum) -> Way {
      return [&, sum](int) {
        sum();
        if (to_the_end) finish();
      };
    };
    const Way named = then([&] { tensor.sum_by_name(self.library.all()); });
    const Way ordered = then([&] { tensor.sum_in_order(self.library.comm()); });
    const Way bare = then([&] { self.bare.sum(tensor.memory(), tensor.count()); });
    const auto times = measure({named, ordered, bare}, kRounds, 100, false, finish);
    const char* until = to_the_end ? "until device" : "until host";
    self.report("allreduce", until, 8, "named", times[0], times[2]);
    self.report("allreduce", until, 8, "ordered", times[1], times[2]);
  }
}

// Compares with as many bare calls, one after the other.
void bench_group(Rank& self) {
  Mixed mixed(self.gpu);
  const Way named = [&](int) { mixed.sum(self.library.all()); };
  const Way bare = [&](int) {
    for (const Tensor& one : mixed.tensors()) self.bare.sum(one.memory(), one.count());
  };
  const auto times = measure({named, bare}, kRounds, 100, true, [&] { self.gpu.finish(); });
  self.report("8 that cannot be fused", "until device", Mixed::kSums * Mixed::kCount * 4, "named", times[0], times[1]);
}

void bench_gradients(Rank& self) {
  Gradients gradients(self.gpu, 1);
  // One block of the same bytes: the lower bound, without packing and without agreement.
  std::byte* all = self.gpu.allocate(gradients.elements() * 4);
  const Way named = [&](int) { gradients.sum(self.library.all()); };
  const Way bare = [&](int) { self.bare.sum(all, gradients.elements()); };
  const auto times = measure({named, bare}, kRounds, 5, true, [&] { self.gpu.finish(); });
  self.report("resnet-50, 161 tensors", "until device", gradients.elements() * 4, "named", times[0], times[1]);
}

void run(const Options& options, int rank, const Rendezvous& rendezvous) {
  Rank self(options, rank, rendezvous);
  if (rank == 0) {
    std::printf(
        "%s, %s, %d rank%s, %s calls, medians of %d rounds in turns; the last column: more than the bare call\n",
        describe_nccl(options.config).c_str(), std::string(self.gpu.device().name()).c_str(), options.ranks,
        options.ranks == 1 ? "" : "s", options.config.nccl_calls.c_str(), kRounds);
  }
  check(self);
  if (rank == 0) std::printf("all sums are right\n");
  if (options.check_only) return;
  bench_small(self);
  bench_group(self);
  bench_gradients(self);
}

Options parse(int argc, char** argv) {
  Options options;
  const auto knob = [&](const char* name) {
    return [&options, name](const std::string& value) { options.knobs[name] = value; };
  };
  read_words(argc, argv,
             {word_with_value("--ranks", [&](const std::string& value) { options.ranks = std::atoi(value.c_str()); }),
              word_alone("--check", [&] { options.check_only = true; }),
              word_with_value("--json", [&](const std::string& value) { options.json = value; }),
              word_with_value("--library", knob("cuda_library")), word_with_value("--nccl", knob("nccl_library"))});
  options.config = stop_unless(Config::read(Environment::of_process(), options.knobs));
  // A single rank does not use NCCL. Several ranks must use it or fail with the reason.
  if (options.ranks > 1) options.knobs["device_collectives"] = "nccl";
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines appear at once in a pipe too
  const Options options = parse(argc, argv);
  WorkerGroup workers(options.ranks);
  Rendezvous rendezvous;
  if (workers.rank() == 0) {
    rendezvous.id = make_nccl_id(options.config, options.ranks);
    if (::mkdtemp(rendezvous.folder) == nullptr) end(kWrong, "no folder for the rendezvous");
    remove_at_exit(rendezvous.folder);
  }
  workers.broadcast(rendezvous);
  run(options, workers.rank(), rendezvous);
  return workers.outcome();
}
