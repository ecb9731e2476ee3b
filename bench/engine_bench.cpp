// Measures the overhead of the engine: one thread runs all ranks of a group over loopback, so the figures contain no
// hand-off between threads.
//
// `step` is the time of one step of one rank, including the copy between the ranks. Compare the smallest sizes with
// each other, and the largest with memcpy.
#include <benchmark/benchmark.h>

#include <future>

#include "tests/support/thread_ranks.h"

namespace fdl::test {
namespace {

// Connecting blocks until all members connect, so each member needs a thread.
std::vector<std::unique_ptr<Communicator>> make_all(int size, const Config& config) {
  const std::string id = unique_id();
  std::vector<std::future<std::unique_ptr<Communicator>>> coming;
  for (int rank = 0; rank < size; ++rank) {
    coming.push_back(std::async(std::launch::async, [&, rank] { return make_communicator(id, rank, size, config); }));
  }
  std::vector<std::unique_ptr<Communicator>> all;
  for (auto& one : coming) all.push_back(one.get());
  return all;
}

// Op::max keeps the data unchanged in all iterations; a sum of ones would grow without limit.
void allreduce(benchmark::State& state, const char* algorithm, int size) {
  const Config config = make_config();
  const auto all = make_all(size, config);
  const auto count = static_cast<std::size_t>(state.range(0)) / sizeof(float);
  std::vector<std::vector<float>> data(all.size(), std::vector<float>(count, 1));
  std::vector<Operation> operations(all.size());
  for (auto _ : state) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      operations[r].spec = {.reduction = {.op = Op::max}, .count = count, .algorithm = algorithm};
      operations[r].buffers = {data[r].data(), data[r].data()};
      all[r]->start(operations[r]);
    }
    // Round robin: a rank that waits for another one returns from progress() at once.
    for (bool done = false; !done;) {
      done = true;
      for (std::size_t r = 0; r < all.size(); ++r) {
        if (!operations[r].completion.done) all[r]->progress();
        done &= operations[r].completion.done;
      }
    }
  }
  const auto row = find_algorithm(Collective::allreduce, algorithm);
  // Rank 0's schedule stands for all: these algorithms give each rank as many steps.
  const auto steps = static_cast<double>((*row)->write({.size = size}).steps.size()) * size;
  state.counters["step"] = benchmark::Counter(static_cast<double>(state.iterations()) * steps,
                                              benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}

// 4 bytes to 16 MiB. The small sizes show the cost of a step, the large ones the cost of copying.
BENCHMARK_CAPTURE(allreduce, ring_2, "ring", 2)->RangeMultiplier(16)->Range(4, 1 << 24);
BENCHMARK_CAPTURE(allreduce, ring_8, "ring", 8)->RangeMultiplier(16)->Range(4, 1 << 24);
BENCHMARK_CAPTURE(allreduce, direct_8, "direct", 8)->RangeMultiplier(16)->Range(4, 1 << 24);
BENCHMARK_CAPTURE(allreduce, recursive_doubling_8, "recursive_doubling", 8)->RangeMultiplier(16)->Range(4, 1 << 24);

}  // namespace
}  // namespace fdl::test

BENCHMARK_MAIN();
