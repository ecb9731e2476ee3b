// Checks the one-shot kernels bit for bit against the CPU's, and measures them, also where there is one GPU.
//
//   one_shot_bench [--ranks N] [--processes] [--check] [--json FILE] [--library L]
//
// Ranks are threads, each with a stream and a block of its own. On one GPU their kernels run side by side, so that the
// times are those of the kernels and their flags without a link between devices. --processes: ranks are processes,
// which open each other's blocks by CUDA's handles. On one GPU the kernels of several processes take turns, and their
// times say nothing. The exit code is 3 without a GPU, and 4 if a result is wrong.
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "bench/gpu/bench_gpu.h"
#include "bench/gpu/bits.h"
#include "bench/gpu/words.h"
#include "bench/gpu/worker_group.h"
#include "bench/times.h"
#include "data/reduce.h"

namespace {

using namespace fdl;
using namespace gpu_bench;

constexpr std::size_t kMost = 512_KiB;  // of a vector
constexpr int kMostRanks = 16;

struct Options {
  Config config;
  int ranks = 2;
  bool processes = false;
  bool check_only = false;
  std::string json;
};

// What the ranks exchange, in memory that processes share.
struct Board {
  std::atomic<int> arrived{0};
  std::atomic<int> wrong{0};
  OneShotSums::Address addresses[kMostRanks];
  double times[kMostRanks]{};

  void meet(int ranks) {
    const int mine = arrived.fetch_add(1);
    const Deadline deadline = Deadline::after_seconds(60);
    while (arrived.load() < (mine / ranks + 1) * ranks) {
      if (deadline.passed()) end(kWrong, "another rank does not come");
      std::this_thread::yield();
    }
  }
};

// One rank with the opened blocks of all ranks.
class Rank {
 public:
  Rank(const Options& options, int rank, Board& board)
      : rank_(rank), ranks_(options.ranks), board_(board), gpu_(options.config, rank) {
    sums_ = gpu_.device().one_shot_sums();
    if (sums_ == nullptr) end(kNone, "this build has no one-shot kernels");
    stop_ = static_cast<uint32_t*>(stop_unless(gpu_.device().allocate_pinned(sizeof *stop_)));
    *stop_ = 0;
    // Memory is allocated before the first kernel waits, because an allocation may wait for all kernels of the device.
    memory_ = gpu_.allocate(kMost + 64);
    host_ = static_cast<std::byte*>(stop_unless(gpu_.device().allocate_pinned(kMost)));
    void* const own = stop_unless(sums_->allocate(kMost, board.addresses[rank]));
    meet();
    for (int r = 0; r < ranks_; ++r) {
      blocks_.push_back(r == rank ? own : stop_unless(sums_->open(board.addresses[r])));
    }
  }
  // A block is released when no rank uses it any more.
  ~Rank() {
    gpu_.finish();
    meet();
    for (int r = 0; r < ranks_; ++r) {
      void* const block = blocks_[static_cast<std::size_t>(r)];
      r == rank_ ? sums_->release(block) : sums_->close(block);
    }
    gpu_.device().release_pinned(stop_);
    gpu_.device().release_pinned(host_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void meet() { board_.meet(ranks_); }
  void queue(const void* input, void* output, std::size_t count, Dtype dtype, Op op, double factor) {
    stop_unless(sums_->sum(gpu_.stream(), {.input = input,
                                           .output = output,
                                           .count = count,
                                           .dtype = dtype,
                                           .op = op,
                                           .factor = factor,
                                           .rank = rank_,
                                           .blocks = blocks_,
                                           .vector_bytes = kMost,
                                           .stop = stop_}));
  }
  // The vector, which is not in use, to and from the device.
  void put(std::byte* target, const std::vector<std::byte>& values) {
    std::memcpy(host_, values.data(), values.size());
    stop_unless(gpu_.device().copy(gpu_.stream(), target, host_, values.size()));
    gpu_.finish();
  }
  std::vector<std::byte> get(const std::byte* source, std::size_t bytes) {
    stop_unless(gpu_.device().copy(gpu_.stream(), host_, source, bytes));
    gpu_.finish();
    return {host_, host_ + bytes};
  }
  // The slowest rank's time.
  double slowest(double time) {
    board_.times[rank_] = time;
    meet();
    const double most = *std::max_element(board_.times, board_.times + ranks_);
    meet();
    return most;
  }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  BenchGpu& gpu() { return gpu_; }
  std::byte* memory() const { return memory_; }  // for a vector

 private:
  const int rank_, ranks_;
  Board& board_;
  BenchGpu gpu_;
  OneShotSums* sums_ = nullptr;
  uint32_t* stop_ = nullptr;
  std::byte* memory_ = nullptr;
  std::byte* host_ = nullptr;  // pinned
  std::vector<void*> blocks_;
};

// ---- Checks ----

// The vectors of all ranks. Each rank makes all of them, from the same seed, because it computes the expected result.
using Inputs = std::vector<std::vector<std::byte>>;
Inputs inputs_of(int ranks, Dtype dtype, std::size_t count) {
  std::mt19937_64 random(count);
  Inputs inputs;
  for (int r = 0; r < ranks; ++r) inputs.push_back(numbers(count * size_of(dtype), random));
  return inputs;
}

// One sum. The tensors begin one element behind an allocation where `shifted`.
void check_sum(Rank& self, Bits& bits, const Inputs& inputs, Dtype dtype, Op op, bool shifted) {
  const std::size_t bytes = inputs.front().size(), count = bytes / size_of(dtype);
  const double factor = shifted ? 1.0 / 3 : 1;  // reals are divided by 3
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<std::byte> expected(bytes);
  reduce_many(dtype, {op}, expected.data(), sources, count);
  scale(dtype, expected.data(), expected.data(), count, factor);
  std::byte* const tensor = self.memory() + (shifted ? size_of(dtype) : 0);
  self.put(tensor, inputs[static_cast<std::size_t>(self.rank())]);
  self.queue(tensor, tensor, count, dtype, op, factor);
  bits.expect_equal(dtype, self.get(tensor, bytes), expected,
                    std::string(name_of(op)) + " of " + std::to_string(count) + " " + std::string(name_of(dtype)));
}

void check_kernels(Rank& self, Bits& bits) {
  for (int d = 0; d < kDtypeCount; ++d) {
    const auto dtype = static_cast<Dtype>(d);
    const Inputs inputs = inputs_of(self.ranks(), dtype, 20011);
    for (int o = 0; o < kOpCount; ++o) {
      const auto op = static_cast<Op>(o);
      if (!supports(dtype, op) || op == Op::user) continue;
      for (const bool shifted : {false, true}) check_sum(self, bits, inputs, dtype, op, shifted);
    }
  }
  for (std::size_t count = 1; count <= kMost / 4; count = count * 3 + 1) {
    check_sum(self, bits, inputs_of(self.ranks(), Dtype::float32, count), Dtype::float32, Op::sum, count % 2 == 0);
  }
}

// Sums that follow each other at once: a fast rank must not overwrite what a slow one still reads. The values change
// with each sum, and wrap around.
void check_sequence(Rank& self, Bits& bits, std::size_t count, int sums) {
  std::vector<std::byte> start(count * 8), expected(count * 8);
  uint64_t value = static_cast<uint64_t>(self.rank()) + 1;
  uint64_t sum = static_cast<uint64_t>(self.ranks()) * static_cast<uint64_t>(self.ranks() + 1) / 2;
  for (int i = 1; i < sums; ++i) sum *= static_cast<uint64_t>(self.ranks());
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(&start[8 * i], &value, 8);
    std::memcpy(&expected[8 * i], &sum, 8);
  }
  self.put(self.memory(), start);
  for (int i = 0; i < sums; ++i) self.queue(self.memory(), self.memory(), count, Dtype::uint64, Op::sum, 1);
  bits.expect_equal(Dtype::uint64, self.get(self.memory(), start.size()), expected,
                    std::to_string(sums) + " sums of " + std::to_string(count) + " uint64 at once");
}

// ---- Times ----

void report(const Options& options, std::size_t bytes, const bench::Times& queued, const bench::Times& single) {
  std::printf("%10zu B   one after the other %8.2f us (least %8.2f)   until device %8.2f us (least %8.2f)\n", bytes,
              queued.median_us, queued.least_us, single.median_us, single.least_us);
  if (options.json.empty()) return;
  std::FILE* file = std::fopen(options.json.c_str(), "a");
  if (file == nullptr) end(kWrong, "cannot write " + options.json);
  std::fprintf(file,
               "{\"bench\":\"one_shot\",\"ranks\":%d,\"processes\":%d,\"bytes\":%zu,\"queued_us\":%.3f,"
               "\"queued_least_us\":%.3f,\"single_us\":%.3f,\"single_least_us\":%.3f}\n",
               options.ranks, options.processes ? 1 : 0, bytes, queued.median_us, queued.least_us, single.median_us,
               single.least_us);
  std::fclose(file);
}

// The time of one sum among many that are queued at once, and of one sum until the host knows its end.
void time_sums(Rank& self, const Options& options) {
  constexpr int kRounds = 11, kQueued = 100, kSingle = 20;
  for (std::size_t bytes = 8; bytes <= kMost; bytes *= 4) {
    std::vector<double> queued, single;
    const auto time = [&](int calls, bool each) {
      self.meet();
      const int64_t begin = now_ns();
      for (int i = 0; i < calls; ++i) {
        self.queue(self.memory(), self.memory(), bytes / 4, Dtype::float32, Op::max, 1);
        if (each) self.gpu().finish();
      }
      self.gpu().finish();
      return self.slowest(static_cast<double>(now_ns() - begin) / 1000 / calls);
    };
    for (int round = -1; round < kRounds; ++round) {
      const double of_queued = time(kQueued, false), of_single = time(kSingle, true);
      if (round < 0) continue;
      queued.push_back(of_queued);
      single.push_back(of_single);
    }
    if (self.rank() == 0) report(options, bytes, bench::Times::of(queued), bench::Times::of(single));
  }
}

void run(const Options& options, int rank, Board& board) {
  Rank self(options, rank, board);
  Bits bits;
  check_kernels(self, bits);
  // Few where the kernels of several ranks take turns, and on the fakes.
  const int sums = options.processes || options.check_only ? 20 : 1000;
  check_sequence(self, bits, 1024, sums);
  check_sequence(self, bits, kMost / 8, sums);
  board.wrong += bits.wrong;
  self.meet();
  if (rank == 0) {
    std::printf("%s, %d ranks as %s: %d checks on each against the CPU's kernels, %d wrong\n",
                std::string(self.gpu().device().name()).c_str(), options.ranks,
                options.processes ? "processes" : "threads", bits.checks, board.wrong.load());
  }
  if (options.check_only || board.wrong != 0) return;
  time_sums(self, options);
}

Options parse(int argc, char** argv) {
  Options options;
  read_words(argc, argv,
             {word_with_value("--ranks", [&](const std::string& value) { options.ranks = std::atoi(value.c_str()); }),
              word_alone("--processes", [&] { options.processes = true; }),
              word_alone("--check", [&] { options.check_only = true; }),
              word_with_value("--json", [&](const std::string& value) { options.json = value; }),
              word_with_value("--library", [&](const std::string& value) { options.config.cuda_library = value; })});
  if (options.ranks < 2 || options.ranks > kMostRanks) end(kUsage, "--ranks is a number from 2 to 16");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines appear at once in a pipe too
  const Options options = parse(argc, argv);
  void* const shared = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) end(kWrong, "no memory for the ranks to share");
  auto* const board = new (shared) Board;
  int outcome = 0;
  if (options.processes) {
    WorkerGroup workers(options.ranks);
    run(options, workers.rank(), *board);
    outcome = workers.outcome();
  } else {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < options.ranks; ++rank) {
      threads.emplace_back([&options, rank, board] { run(options, rank, *board); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  return board->wrong != 0 ? kWrong : outcome;
}
