// What a call costs: the library's allreduce by name and the ordered one, through the C API, beside a bare
// ncclAllReduce, in the same process and on the same stream, in turns: of 8 bytes, of several that cannot be fused and
// begin together, and of ResNet-50's gradients.
//
//   calls_bench [--ranks N] [--check] [--json FILE] [--library L] [--nccl L]
//
// Several ranks are processes, which share the GPUs that there are (NCCL from 2.30 on). --check: results alone. Ends
// with 3 where there is no GPU or no NCCL, with 4 when a result is wrong.
#include <farandole/farandole.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bench/gpu/bench_gpu.h"
#include "bench/gpu/crew.h"
#include "bench/gpu/resnet50.h"
#include "bench/gpu/turns.h"
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

struct Rendezvous {
  DeviceLibrary::Id id{};
  char folder[64] = "/tmp/calls_bench.XXXXXX";
};

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
    fdl_world_options told;
    fdl_world_options_init(&told);
    told.rank = rank;
    told.size = options.ranks;
    told.rendezvous = place.c_str();
    told.job_key = "the ranks of one benchmark";
    told.options = texts.data();
    told.option_count = options.knobs.size();
    must(fdl_world_create(&told, &world_));
    must(fdl_comm_create(fdl_group_all(world_), &comm_));
  }
  ~Library() {
    fdl_comm_destroy(comm_);
    fdl_world_destroy(world_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  fdl_group* all() const { return fdl_group_all(world_); }
  fdl_comm* comm() const { return comm_; }

 private:
  fdl_world* world_ = nullptr;
  fdl_comm* comm_ = nullptr;
};

// A tensor of floats that is summed in its place, by name or in order.
class Tensor {
 public:
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
  // With factors of their own, tensors cannot share a bucket.
  void multiply_by(double factor) { operation_.prescale = factor; }
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

struct Rank {
  Rank(const Options& of_options, int of_rank, const Rendezvous& rendezvous)
      : options(of_options),
        rank(of_rank),
        gpu(options.config, rank),
        bare(options.config, gpu, rank, options.ranks, rendezvous.id),
        library(options, rank, rendezvous) {}

  void report(const std::string& what, const char* until, std::size_t bytes, const char* way, Times ours,
              Times bare_one) const {
    if (rank != 0) return;
    std::printf("%-24s %10zu B  %-8s %-14s %10.2f us (least %10.2f)   bare %10.2f us (least %10.2f)   %+10.2f us\n",
                what.c_str(), bytes, way, until, ours.median_us, ours.least_us, bare_one.median_us, bare_one.least_us,
                ours.median_us - bare_one.median_us);
    if (options.json.empty()) return;
    std::FILE* file = std::fopen(options.json.c_str(), "a");
    if (file == nullptr) end(kWrong, "cannot write " + options.json);
    std::fprintf(file,
                 "{\"bench\":\"calls\",\"what\":\"%s\",\"way\":\"%s\",\"until\":\"%s\",\"ranks\":%d,\"bytes\":%zu,"
                 "\"ours_us\":%.3f,\"ours_least_us\":%.3f,\"bare_us\":%.3f,\"bare_least_us\":%.3f}\n",
                 what.c_str(), way, until, options.ranks, bytes, ours.median_us, ours.least_us, bare_one.median_us,
                 bare_one.least_us);
    std::fclose(file);
  }

  const Options& options;
  const int rank;
  BenchGpu gpu;
  BareNccl bare;
  Library library;
};

// As a training step has them: each submitted when it is ready, then all are waited for.
class Gradients {
 public:
  Gradients(BenchGpu& gpu, std::size_t divisor) {
    for (const std::size_t size : resnet50()) {
      tensors_.emplace_back(gpu, std::max<std::size_t>(size / divisor, 1), "gradient." + std::to_string(count_++));
      elements_ += tensors_.back().count();
    }
  }
  void sum(fdl_group* group) {
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

// Small sums that cannot be fused, submitted at once: NCCL gets them as one group.
class Mixed {
 public:
  explicit Mixed(BenchGpu& gpu) {
    for (int i = 0; i < kSums; ++i) {
      tensors_.emplace_back(gpu, kCount, "mixed." + std::to_string(i));
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

void check(Rank& me) {
  Tensor tensor(me.gpu, 1000, "checked");
  const auto expect = [&](const char* what, const std::function<void()>& sum) {
    me.gpu.put(tensor.memory(), values_of(me.rank, tensor.count()));
    sum();
    if (!is_sum(me.gpu.get(tensor.memory(), tensor.count()), me.options.ranks)) {
      end(kWrong, std::string("the sum ") + what + " is wrong");
    }
  };
  expect("by name", [&] { tensor.sum_by_name(me.library.all()); });
  expect("in order", [&] { tensor.sum_in_order(me.library.comm()); });
  expect("of bare NCCL", [&] { me.bare.sum(tensor.memory(), tensor.count()); });
  Mixed mixed(me.gpu);
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < Mixed::kSums; ++i) {
      std::vector<float> values = values_of(me.rank, Mixed::kCount);
      for (float& value : values) value *= static_cast<float>(1 << i);
      me.gpu.put(mixed.tensors()[static_cast<std::size_t>(i)].memory(), values);
    }
    mixed.sum(me.library.all());
    for (const Tensor& one : mixed.tensors()) {
      if (!is_sum(me.gpu.get(one.memory(), one.count()), me.options.ranks)) end(kWrong, "a sum among others is wrong");
    }
  }
  Gradients gradients(me.gpu, 1000);
  for (int step = 0; step < 3; ++step) {
    for (const Tensor& one : gradients.tensors()) me.gpu.put(one.memory(), values_of(me.rank, one.count()));
    gradients.sum(me.library.all());
    for (const Tensor& one : gradients.tensors()) {
      if (!is_sum(me.gpu.get(one.memory(), one.count()), me.options.ranks)) end(kWrong, "a gradient's sum is wrong");
    }
  }
}

// "host": until the call is done, which the host is free after; "device": until the device is through with each.
void bench_small(Rank& me) {
  Tensor tensor(me.gpu, 2, "small");
  const auto finish = [&] { me.gpu.finish(); };
  for (const bool to_the_end : {false, true}) {
    const auto then = [&](auto sum) -> Way {
      return [&, sum](int) {
        sum();
        if (to_the_end) finish();
      };
    };
    const Way named = then([&] { tensor.sum_by_name(me.library.all()); });
    const Way ordered = then([&] { tensor.sum_in_order(me.library.comm()); });
    const Way bare = then([&] { me.bare.sum(tensor.memory(), tensor.count()); });
    const auto times = measure({named, ordered, bare}, kRounds, 100, false, finish);
    const char* until = to_the_end ? "until device" : "until host";
    me.report("allreduce", until, 8, "named", times[0], times[2]);
    me.report("allreduce", until, 8, "ordered", times[1], times[2]);
  }
}

// Beside as many bare calls, one after the other.
void bench_group(Rank& me) {
  Mixed mixed(me.gpu);
  const Way named = [&](int) { mixed.sum(me.library.all()); };
  const Way bare = [&](int) {
    for (const Tensor& one : mixed.tensors()) me.bare.sum(one.memory(), one.count());
  };
  const auto times = measure({named, bare}, kRounds, 100, true, [&] { me.gpu.finish(); });
  me.report("8 that cannot be fused", "until device", Mixed::kSums * Mixed::kCount * 4, "named", times[0], times[1]);
}

void bench_gradients(Rank& me) {
  Gradients gradients(me.gpu, 1);
  std::byte* all = me.gpu.allocate(gradients.elements() * 4);
  const Way named = [&](int) { gradients.sum(me.library.all()); };
  const Way bare = [&](int) { me.bare.sum(all, gradients.elements()); };
  const auto times = measure({named, bare}, kRounds, 5, true, [&] { me.gpu.finish(); });
  me.report("resnet-50, 161 tensors", "until device", gradients.elements() * 4, "named", times[0], times[1]);
}

void run(const Options& options, int rank, const Rendezvous& rendezvous) {
  Rank me(options, rank, rendezvous);
  if (rank == 0) {
    std::printf("%s, %s, %d rank%s, medians of %d rounds in turns; the last column: more than the bare call\n",
                describe_nccl(options.config).c_str(), std::string(me.gpu.device().name()).c_str(), options.ranks,
                options.ranks == 1 ? "" : "s", kRounds);
  }
  check(me);
  if (rank == 0) std::printf("all sums are right\n");
  if (options.check_only) return;
  bench_small(me);
  bench_group(me);
  bench_gradients(me);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      return i + 1 < argc ? std::string(argv[++i]) : (end(kUsage, word + " needs a value"), "");
    };
    if (word == "--ranks") {
      options.ranks = std::atoi(value().c_str());
    } else if (word == "--check") {
      options.check_only = true;
    } else if (word == "--json") {
      options.json = value();
    } else if (word == "--library") {
      options.knobs["cuda_library"] = value();
    } else if (word == "--nccl") {
      options.knobs["nccl_library"] = value();
    } else {
      end(kUsage, "'" + word + "' is none of --ranks, --check, --json, --library, --nccl");
    }
  }
  options.config = stop_unless(Config::read(Environment::of_process(), options.knobs));
  // One rank alone has nobody to use NCCL with, and several are to use it or to say why not.
  if (options.ranks > 1) options.knobs["device_collectives"] = "nccl";
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a line is seen when it is known
  const Options options = parse(argc, argv);
  WorkerGroup workers(options.ranks);
  Rendezvous rendezvous;
  if (workers.rank() == 0) {
    rendezvous.id = make_nccl_id(options.config, options.ranks);
    if (::mkdtemp(rendezvous.folder) == nullptr) end(kWrong, "no folder to meet in");
  }
  workers.tell(rendezvous);
  run(options, workers.rank(), rendezvous);
  const int outcome = workers.outcome();
  if (workers.rank() == 0) std::filesystem::remove_all(rendezvous.folder);
  return outcome;
}
