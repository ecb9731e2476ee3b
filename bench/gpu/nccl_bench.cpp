// Our allreduce by NCCL beside a bare ncclAllReduce, in the same process, on the same stream and buffers, in turns.
//
//   nccl_bench [--ranks N] [--direct] [--most BYTES] [--json FILE] [--library libcuda.so.1] [--nccl libnccl.so.2]
//
// Several ranks are processes on the one GPU (NCCL from 2.30 on). Ends with 3 where there is no GPU or no NCCL, with 4
// when a result is wrong.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cuda/cuda_device.h"
#include "system/poller.h"
#include "transports/nccl/nccl_device_library.h"

namespace {

using namespace fdl;

constexpr int kNone = 3;
constexpr int kWrong = 4;
constexpr int kRounds = 7;
constexpr std::size_t kRotating = 256_MiB;  // beyond the caches of any GPU, where what is measured is large itself

struct Options {
  Config config;
  int ranks = 1;
  NcclCalls calls = NcclCalls::deferred;
  std::size_t most = 256_MiB;
  std::string json;
};

[[noreturn]] void end(int code, const std::string& why) {
  std::fprintf(stderr, "nccl_bench: %s\n", why.c_str());
  std::exit(code);
}
void stop_unless(const Status& status, int code = kWrong) {
  if (!status.ok()) end(code, status.text());
}
template <class T>
T stop_unless(Result<T> result, int code = kWrong) {
  stop_unless(result.status(), code);
  return result.take();
}

// One rank with both communicators.
class Rank {
 public:
  Rank(const Options& options, int of_rank, const DeviceLibrary::Id& ours, const DeviceLibrary::Id& theirs)
      : rank(of_rank),
        options_(options),
        device_(stop_unless(open_cuda_device(0, options.config), kNone)),
        device(*device_),
        stream(stop_unless(device.make_stream())),
        bell_(stop_unless(Event::make())),
        library(stop_unless(open_nccl(options.config, options.ranks > 1, options.calls), kNone)),
        bare_(stop_unless(NcclLibrary::open(options.config.nccl_library), kNone)) {
    std::vector<Member> members;
    for (int r = 0; r < options.ranks; ++r) members.push_back({r, "host", "", 0});
    collectives = stop_unless(library->join(ours, rank, members, device, Deadline::after_seconds(60)));
    begin_bare(theirs);
  }
  ~Rank() {
    collectives.reset();
    bare_->functions().CommAbort(comm_);
    for (void* memory : memory_) device.release(memory);
    device.end_stream(stream);
  }

  std::byte* allocate(std::size_t bytes) {
    memory_.push_back(stop_unless(device.allocate(bytes)));
    return static_cast<std::byte*>(memory_.back());
  }
  void finish() {
    stop_unless(device.ring(stream, bell_));
    if (!wait_readable(bell_.fd(), Deadline::after_seconds(60))) end(kWrong, "the stream hangs");
    bell_.clear();
  }

  void our_sum(void* memory, std::size_t count) {
    Completion completion;
    CollectiveSpec spec{.count = count, .device = &device, .stream = stream};
    collectives->start(spec, {memory, memory}, completion);
    drive(completion);
  }
  void bare_sum(void* memory, std::size_t count) {
    const auto outcome =
        bare_->functions().AllReduce(memory, memory, count, nccl::Type::float32, nccl::RedOp::sum, comm_, stream);
    if (outcome != nccl::Outcome::success) end(kWrong, bare_->words_for(outcome, comm_));
  }

  const int rank;

 private:
  const Options& options_;
  std::shared_ptr<Device> device_;

 public:
  Device& device;
  Stream stream;

 private:
  Event bell_;

 public:
  std::shared_ptr<DeviceLibrary> library;
  std::unique_ptr<Collectives> collectives;

 private:
  void drive(Completion& completion) {
    while (!completion.done) collectives->progress();
    stop_unless(completion.status);
  }
  void begin_bare(const DeviceLibrary::Id& id) {
    nccl::UniqueId unique{};
    std::memcpy(&unique, id.data(), sizeof unique);
    nccl::ConfigOf218 config;
    config.blocking = 1;
    stop_unless(device.enter());
    const auto outcome = bare_->functions().CommInitRankConfig(&comm_, options_.ranks, unique, rank, &config);
    device.leave();
    if (outcome != nccl::Outcome::success) end(kWrong, bare_->words_for(outcome, nullptr));
  }

  std::shared_ptr<const NcclLibrary> bare_;
  nccl::Comm comm_ = nullptr;
  std::vector<void*> memory_;
};

struct Times {
  double median_us;
  double least_us;
};

Times times_of(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return {all[all.size() / 2], all.front()};
}

// Seconds of one call of each, where calls take turns round by round so that both meet the same machine.
std::vector<Times> measure(Rank& me, const std::vector<std::function<void(int)>>& ways, int calls) {
  std::vector<std::vector<double>> all(ways.size());
  for (int round = -1; round < kRounds; ++round) {  // the first one warms up
    for (std::size_t way = 0; way < ways.size(); ++way) {
      me.finish();
      const int64_t begin = now_ns();
      for (int call = 0; call < calls; ++call) ways[way](call);
      me.finish();
      if (round >= 0) all[way].push_back(static_cast<double>(now_ns() - begin) / 1000 / calls);
    }
  }
  std::vector<Times> times;
  for (auto& each : all) times.push_back(times_of(each));
  return times;
}

void report(const Options& options, const char* what, std::size_t bytes, const Times& ours, const Times& bare) {
  const double n = options.ranks;
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
               "{\"bench\":\"nccl\",\"what\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"ours_us\":%.3f,\"ours_least_us\":%.3f,"
               "\"bare_us\":%.3f,\"bare_least_us\":%.3f,\"ours_busbw\":%.3f,\"bare_busbw\":%.3f}\n",
               what, options.ranks, bytes, ours.median_us, ours.least_us, bare.median_us, bare.least_us,
               busbw(ours.median_us), busbw(bare.median_us));
  std::fclose(file);
}

void check(Rank& me, std::byte* memory, int ranks) {
  constexpr std::size_t kCount = 1000;
  for (const bool ours : {true, false}) {
    std::vector<float> values(kCount);
    for (std::size_t i = 0; i < kCount; ++i)
      values[i] = static_cast<float>(i % 100 + static_cast<std::size_t>(me.rank));
    stop_unless(me.device.copy(me.stream, memory, values.data(), kCount * 4));
    me.finish();
    ours ? me.our_sum(memory, kCount) : me.bare_sum(memory, kCount);
    stop_unless(me.device.copy(me.stream, values.data(), memory, kCount * 4));
    me.finish();
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto expected = static_cast<float>(static_cast<int>(i % 100) * ranks + ranks * (ranks - 1) / 2);
      if (values[i] != expected) end(kWrong, ours ? "our sum is wrong" : "the bare sum is wrong");
    }
  }
}

// The 161 gradients of ResNet-50, in elements.
std::vector<std::size_t> resnet50() {
  std::vector<std::size_t> counts;
  const auto convolution = [&](std::size_t in, std::size_t out, std::size_t side) {
    counts.insert(counts.end(), {in * out * side * side, out, out});
  };
  convolution(3, 64, 7);
  std::size_t in = 64;
  for (const auto& [width, blocks] : {std::pair<std::size_t, int>{64, 3}, {128, 4}, {256, 6}, {512, 3}}) {
    for (int block = 0; block < blocks; ++block) {
      convolution(in, width, 1);
      convolution(width, width, 3);
      convolution(width, 4 * width, 1);
      if (block == 0) convolution(in, 4 * width, 1);
      in = 4 * width;
    }
  }
  counts.insert(counts.end(), {2048 * 1000, 1000});
  return counts;
}

// Packed and summed as one, beside one bare sum of as many bytes.
void bench_fusion(Rank& me, const Options& options, std::byte* memory) {
  std::vector<DevicePiece> pieces;
  std::size_t total = 0;
  for (const std::size_t count : resnet50()) {
    std::byte* tensor = me.allocate(count * 4);
    pieces.push_back({tensor, total, count});
    total += count;
  }
  const auto fused = [&](int) {
    stop_unless(me.device.pack(me.stream, pieces, Dtype::float32, memory, Dtype::float32, 1));
    me.our_sum(memory, total);
    stop_unless(me.device.unpack(me.stream, pieces, Dtype::float32, memory, Dtype::float32, 1));
  };
  const auto bare = [&](int) { me.bare_sum(memory, total); };
  const auto times = measure(me, {fused, bare}, 5);
  if (me.rank != 0) return;
  report(options, "resnet-50, packed", total * 4, times[0], times[1]);
}

void run(const Options& options, int rank, const DeviceLibrary::Id& ours, const DeviceLibrary::Id& theirs) {
  Rank me(options, rank, ours, theirs);
  const std::size_t rotating = std::min(kRotating, std::max(1_MiB, 256 * options.most));
  std::byte* memory = me.allocate(rotating);
  stop_unless(me.device.fill_zero(me.stream, memory, rotating));
  check(me, memory, options.ranks);
  if (rank == 0) {
    std::printf("%s, %s, %d rank%s, medians of %d rounds in turns\n", describe_nccl(options.config).c_str(),
                std::string(me.device.name()).c_str(), options.ranks, options.ranks == 1 ? "" : "s", kRounds);
  }
  for (std::size_t bytes = 8; bytes <= options.most; bytes *= bytes == 128_MiB ? 2 : 8) {
    const std::size_t places = std::max<std::size_t>(rotating / std::max<std::size_t>(bytes, 4096), 1);
    const auto place = [&](int call) {
      return memory + static_cast<std::size_t>(call) % places * std::max<std::size_t>(bytes, 4096);
    };
    const auto ours_way = [&](int call) { me.our_sum(place(call), bytes / 4); };
    const auto bare_way = [&](int call) { me.bare_sum(place(call), bytes / 4); };
    const auto times = measure(me, {ours_way, bare_way}, bytes <= 1_MiB ? 100 : 8);
    if (rank == 0) report(options, "allreduce", bytes, times[0], times[1]);
  }
  if (options.most >= 128_MiB) bench_fusion(me, options, memory);
}

Options parse(int argc, char** argv) {
  Options options;
  std::map<std::string, std::string> knobs;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : (end(64, word + " needs a value"), ""); };
    if (word == "--ranks") {
      options.ranks = std::atoi(value().c_str());
    } else if (word == "--direct") {
      options.calls = NcclCalls::direct;
    } else if (word == "--most") {
      options.most = stop_unless(parse_bytes(value()));
    } else if (word == "--json") {
      options.json = value();
    } else if (word == "--library") {
      knobs["cuda_library"] = value();
    } else if (word == "--nccl") {
      knobs["nccl_library"] = value();
    } else {
      end(64, "'" + word + "' is none of --ranks, --direct, --most, --json, --library, --nccl");
    }
  }
  options.config = stop_unless(Config::read(Environment::of_process(), knobs));
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.ranks > 1) ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  // Forked before anything is opened; ids come through a pipe each.
  std::vector<int> writers;
  std::vector<pid_t> children;
  int rank = 0;
  int reader = -1;
  for (int r = 1; r < options.ranks && rank == 0; ++r) {
    int ends[2];
    if (::pipe(ends) != 0) end(kWrong, "no pipe");
    const pid_t child = ::fork();
    if (child == 0) {
      rank = r;
      reader = ends[0];
    }
    children.push_back(child);
    writers.push_back(ends[1]);
  }
  DeviceLibrary::Id ids[2];
  if (rank == 0) {
    const auto library = stop_unless(open_nccl(options.config, options.ranks > 1), kNone);
    stop_unless(count_cuda_devices(options.config), kNone);
    for (auto& id : ids) id = stop_unless(library->make_id());
    for (const int writer : writers) {
      if (::write(writer, ids, sizeof ids) != sizeof ids) end(kWrong, "no id sent");
    }
  } else if (::read(reader, ids, sizeof ids) != sizeof ids) {
    std::exit(kNone);
  }
  run(options, rank, ids[0], ids[1]);
  int worst = 0;
  for (const pid_t child : children) {
    int state = 0;
    if (rank == 0 && ::waitpid(child, &state, 0) == child && state != 0) worst = kWrong;
  }
  return worst;
}
