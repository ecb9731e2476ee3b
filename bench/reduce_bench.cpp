// Measures the reduction kernels, in bytes read and written per second, beside the limit of memory in the same run.
//   build/bin/reduce_bench [--json] [--benchmark_filter=sum/float32]
//
// Arrays have three sizes: 4 KiB (L1), 1 MiB (L2), and 64 MiB (memory). For 64 MiB, kernels that read one array and
// write one are compared with memcpy. Kernels that read two and write one are compared with the faster of two triads
// (a = b + c of float32). The triads differ in their stores: ordinary stores first read the line that they write,
// streaming stores bypass the caches. The limits are measured just before the kernels.
#include <benchmark/benchmark.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
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

// The byte 0x38 gives a number of ordinary size in every type, so that denormals or overflow do not slow a kernel.
// Aligned to a page, as large tensors usually are; streaming stores need the alignment of a vector.
Array array_of(std::size_t bytes) {
  Array array(static_cast<uint8_t*>(std::aligned_alloc(4096, bytes)));
  std::memset(array.get(), 0x38, bytes);
  return array;
}

// `bytes_moved` counts what the kernel reads and writes in one call, not what caches transfer.
void report(benchmark::State& state, std::size_t bytes_moved, double bound_bytes_per_s = 0) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes_moved));
  if (bound_bytes_per_s > 0) state.counters["bound_GBps"] = bound_bytes_per_s * 1e-9;
}

// ---- Limits of memory ----

// target = a + b. The arrays are aligned, and their length is a multiple of the vector's.
template <bool kStreams>
void triad(float* target, const float* a, const float* b, std::size_t count) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto sum = hn::Add(hn::Load(d, a + i), hn::Load(d, b + i));
    if constexpr (kStreams) {
      hn::Stream(sum, d, target + i);
    } else {
      hn::Store(sum, d, target + i);
    }
  }
  // Streaming stores may still be in flight when the loop ends; the time must include them.
  hwy::FlushStream();
}

// Bytes read and written per second, the best of several attempts.
template <typename Body>
double best_bytes_per_s(std::size_t bytes_moved, const Body& body) {
  using Clock = std::chrono::steady_clock;
  // At least 16 MiB are moved between two readings of the clock.
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{16} << 20) / bytes_moved);
  double best = 0;
  for (int batch = 0; batch < 12; ++batch) {
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < repeats; ++i) body();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, static_cast<double>(bytes_moved * repeats) / seconds);
  }
  return best;
}

// Bytes per second.
struct Bounds {
  double copy = 0;
  double triad = 0;
};

Bounds bounds_of_memory(std::size_t bytes) {
  const Array a = array_of(bytes);
  const Array b = array_of(bytes);
  const Array target = array_of(bytes);
  const auto floats = [](const Array& array) { return reinterpret_cast<float*>(array.get()); };
  const std::size_t count = bytes / sizeof(float);
  // ClobberMemory() makes the compiler assume that the memory is read, so it cannot drop the copy.
  const double copied = best_bytes_per_s(2 * bytes, [&] {
    std::memcpy(target.get(), a.get(), bytes);
    benchmark::ClobberMemory();
  });
  const auto triad_at = [&](auto how) {
    return best_bytes_per_s(3 * bytes, [&] {
      how(floats(target), floats(a), floats(b), count);
      benchmark::ClobberMemory();
    });
  };
  const double plain = triad_at(triad<false>);
  const double streaming = triad_at(triad<true>);
  std::fprintf(stderr, "memory: memcpy %.1f GB/s, triad %.1f GB/s, with streaming stores %.1f GB/s\n", copied * 1e-9,
               plain * 1e-9, streaming * 1e-9);
  return {copied, std::max(plain, streaming)};
}

// ---- Kernels ----

void copy(benchmark::State& state, std::size_t bytes) {
  const Array source = array_of(bytes);
  const Array target = array_of(bytes);
  for (auto _ : state) {
    std::memcpy(target.get(), source.get(), bytes);
    benchmark::ClobberMemory();
  }
  report(state, 2 * bytes);
}

void fold(benchmark::State& state, Dtype dtype, Op op, std::size_t source_count, std::size_t bytes,
          double bound_bytes_per_s = 0) {
  std::vector<Array> arrays;
  std::vector<const void*> sources;
  // Each source has an array of its own: reading one array twice would find it in a cache.
  for (std::size_t k = 0; k < source_count; ++k) sources.push_back(arrays.emplace_back(array_of(bytes)).get());
  const Array target = array_of(bytes);
  for (auto _ : state) {
    reduce_many(dtype, {op}, target.get(), sources, bytes / size_of(dtype));
    benchmark::ClobberMemory();
  }
  report(state, (source_count + 1) * bytes, bound_bytes_per_s);
}

void multiply(benchmark::State& state, Dtype dtype, std::size_t bytes, double bound_bytes_per_s) {
  const Array source = array_of(bytes);
  const Array target = array_of(bytes);
  for (auto _ : state) {
    scale(dtype, target.get(), source.get(), bytes / size_of(dtype), 0.5);
    benchmark::ClobberMemory();
  }
  report(state, 2 * bytes, bound_bytes_per_s);
}

// Prints one JSON object a line.
class JsonLines : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const auto number = [&](const char* name) {
        const auto found = run.counters.find(name);
        return found == run.counters.end() ? 0.0 : found->second.value;
      };
      std::printf("{\"kernel\": \"%s\", \"time_ns\": %.1f, \"GBps\": %.3f", run.benchmark_name().c_str(),
                  run.GetAdjustedRealTime(), number("bytes_per_second") * 1e-9);
      if (number("bound_GBps") > 0) std::printf(", \"bound_GBps\": %.3f", number("bound_GBps"));
      std::puts("}");
    }
    std::fflush(stdout);
  }
};

// Where the arrays of a measurement are: the sizes fit into L1 and L2 of all supported processors, and into no cache.
struct Place {
  const char* name;
  std::size_t bytes;
};
constexpr Place kMemory{"64MiB", 64 << 20};
constexpr Place kPlaces[] = {{"4KiB", 4096}, {"1MiB", 1 << 20}, kMemory};

void register_all() {
  const auto add = [](const std::string& name, auto body) { benchmark::RegisterBenchmark(name.c_str(), body); };
  for (const Place& place : kPlaces) {
    const std::size_t bytes = place.bytes;
    // Only arrays in memory are limited by the memory's bandwidth.
    const Bounds bounds = bytes == kMemory.bytes ? bounds_of_memory(bytes) : Bounds();
    const std::string at = std::string("/") + place.name;
    add("memcpy" + at, [=](benchmark::State& state) { copy(state, bytes); });
    for (int i = 0; i < kDtypeCount; ++i) {
      const auto dtype = static_cast<Dtype>(i);
      const std::string of = "/" + std::string(name_of(dtype)) + at;
      add("sum" + of, [=](benchmark::State& state) { fold(state, dtype, Op::sum, 2, bytes, bounds.triad); });
      add("max" + of, [=](benchmark::State& state) { fold(state, dtype, Op::max, 2, bytes, bounds.triad); });
      add("product" + of, [=](benchmark::State& state) { fold(state, dtype, Op::product, 2, bytes, bounds.triad); });
      add("scale" + of, [=](benchmark::State& state) { multiply(state, dtype, bytes, bounds.copy); });
    }
  }
  // Ranks of one host fold many sources at once; the target is written once, whatever their number.
  for (const std::size_t source_count : {4, 8, 16, 64}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float8_e4m3}) {
      const std::string name = "sum_of_" + std::to_string(source_count) + "/" + std::string(name_of(dtype)) + "/1MiB";
      add(name, [=](benchmark::State& state) { fold(state, dtype, Op::sum, source_count, 1 << 20); });
    }
  }
  // One element measures the overhead of a call.
  add("sum/float32/4B", [](benchmark::State& state) { fold(state, Dtype::float32, Op::sum, 2, 4); });
  add("sum/bfloat16/8B", [](benchmark::State& state) { fold(state, Dtype::bfloat16, Op::sum, 2, 8); });
}

}  // namespace
}  // namespace fdl

int main(int argc, char** argv) {
  benchmark::AddCustomContext("kernels", std::string(fdl::kernel_target()));
  // Google Benchmark refuses options that it does not define, so --json is removed first.
  const auto json =
      std::remove_if(argv + 1, argv + argc, [](const char* word) { return !std::strcmp(word, "--json"); });
  const bool as_json = json != argv + argc;
  argc = static_cast<int>(json - argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  fdl::register_all();
  fdl::JsonLines lines;
  benchmark::RunSpecifiedBenchmarks(as_json ? &lines : nullptr);
  benchmark::Shutdown();
  return 0;
}
