// How fast the reduction kernels are, in bytes read and written a second, beside memcpy in the same run.
//
// Three places: L1 (4 KiB arrays), L2 (1 MiB, or what is left of it), and memory: arrays of 64 MiB that nothing else
// touches in between. memcpy counts both ways too, so its line is the bound of a fold whose bytes come from there.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "data/dtype.h"
#include "data/reduce.h"

namespace fdl {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Array = std::unique_ptr<uint8_t, Free>;

// Ones in every type but bool would do; 0x38 is a modest number in all of them, so that no slow path hides.
Array array_of(std::size_t bytes) {
  Array array(static_cast<uint8_t*>(std::aligned_alloc(4096, bytes)));
  std::memset(array.get(), 0x38, bytes);
  return array;
}

void report(benchmark::State& state, std::size_t bytes_moved) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(bytes_moved));
}

void copy(benchmark::State& state, std::size_t bytes) {
  const Array source = array_of(bytes);
  const Array target = array_of(bytes);
  for (auto _ : state) {
    std::memcpy(target.get(), source.get(), bytes);
    benchmark::ClobberMemory();
  }
  report(state, 2 * bytes);
}

void fold(benchmark::State& state, Dtype dtype, Op op, std::size_t source_count, std::size_t bytes) {
  std::vector<Array> arrays;
  std::vector<const void*> sources;
  for (std::size_t k = 0; k < source_count; ++k) sources.push_back(arrays.emplace_back(array_of(bytes)).get());
  const Array target = array_of(bytes);
  for (auto _ : state) {
    reduce_many(dtype, {op}, target.get(), sources, bytes / size_of(dtype));
    benchmark::ClobberMemory();
  }
  report(state, (source_count + 1) * bytes);
}

void multiply(benchmark::State& state, Dtype dtype, std::size_t bytes) {
  const Array source = array_of(bytes);
  const Array target = array_of(bytes);
  for (auto _ : state) {
    scale(dtype, target.get(), source.get(), bytes / size_of(dtype), 0.5);
    benchmark::ClobberMemory();
  }
  report(state, 2 * bytes);
}

struct Place {
  const char* name;
  std::size_t bytes;
};
constexpr Place kPlaces[] = {{"4KiB", 4096}, {"1MiB", 1 << 20}, {"64MiB", 64 << 20}};

void register_all() {
  const auto add = [](const std::string& name, auto body) { benchmark::RegisterBenchmark(name.c_str(), body); };
  for (const Place& place : kPlaces) {
    const std::size_t bytes = place.bytes;
    const std::string at = std::string("/") + place.name;
    add("memcpy" + at, [=](benchmark::State& state) { copy(state, bytes); });
    for (int i = 0; i < kDtypeCount; ++i) {
      const auto dtype = static_cast<Dtype>(i);
      const std::string of = "/" + std::string(name_of(dtype)) + at;
      add("sum" + of, [=](benchmark::State& state) { fold(state, dtype, Op::sum, 2, bytes); });
      add("max" + of, [=](benchmark::State& state) { fold(state, dtype, Op::max, 2, bytes); });
      add("product" + of, [=](benchmark::State& state) { fold(state, dtype, Op::product, 2, bytes); });
      add("scale" + of, [=](benchmark::State& state) { multiply(state, dtype, bytes); });
    }
  }
  for (const std::size_t source_count : {4, 8, 16, 64}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float8_e4m3}) {
      const std::string name = "sum_of_" + std::to_string(source_count) + "/" + std::string(name_of(dtype)) + "/1MiB";
      add(name, [=](benchmark::State& state) { fold(state, dtype, Op::sum, source_count, 1 << 20); });
    }
  }
  // One element: what a call costs.
  add("sum/float32/4B", [](benchmark::State& state) { fold(state, Dtype::float32, Op::sum, 2, 4); });
  add("sum/bfloat16/8B", [](benchmark::State& state) { fold(state, Dtype::bfloat16, Op::sum, 2, 8); });
}

}  // namespace
}  // namespace fdl

int main(int argc, char** argv) {
  benchmark::AddCustomContext("kernels", std::string(fdl::kernel_target()));
  fdl::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
