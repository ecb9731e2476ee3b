// Measures the conversions of block formats, in bytes of float32 values per second, beside memcpy of as many values.
//   build/bin/compression_bench [--benchmark_filter=int8]
//
// It first prints, for each format, the bytes of a value and the error of 2^20 values of two distributions: the root of
// the mean square relative to that of the values, and the largest one relative to the bound.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "data/compression.h"

namespace fdl {
namespace {

constexpr Compression kAll[] = {Compression::int8, Compression::int4, Compression::float8_e4m3,
                                Compression::float8_e5m2, Compression::bfloat16};

struct Arrays {
  Arrays(Compression compression, std::size_t count)
      : values(count), target(count), blocks(blocks_of(count) * block_bytes(compression)) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random);
    quantise(compression, blocks.data(), values.data(), count);
  }
  std::vector<float> values;
  std::vector<float> target;
  std::vector<std::byte> blocks;
};

template <typename Body>
void measure(benchmark::State& state, std::size_t count, const Body& body) {
  for (auto _ : state) {
    body();
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(count * sizeof(float)));
}

void register_format(Compression compression, const std::string& at, std::size_t count) {
  const auto add = [&](const std::string& what, auto body) {
    const std::string name = what + "/" + std::string(name_of(compression)) + at;
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
      Arrays arrays(compression, count);
      measure(state, count, [&] { body(arrays); });
    });
  };
  add("quantise", [=](Arrays& a) { quantise(compression, a.blocks.data(), a.values.data(), count); });
  add("dequantise", [=](Arrays& a) { dequantise(compression, a.target.data(), a.blocks.data(), count); });
  add("add_dequantised", [=](Arrays& a) { add_dequantised(compression, a.target.data(), a.blocks.data(), count); });
  add("error_bound", [=](Arrays& a) { benchmark::DoNotOptimize(error_bound(compression, a.blocks.data(), count)); });
}

void register_all() {
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{64} << 20}) {
    const std::size_t count = bytes / sizeof(float);
    const std::string at = bytes == std::size_t{1} << 20 ? "/1MiB" : "/64MiB";
    benchmark::RegisterBenchmark(("memcpy" + at).c_str(), [=](benchmark::State& state) {
      Arrays arrays(Compression::int8, count);
      measure(state, count, [&] { std::memcpy(arrays.target.data(), arrays.values.data(), bytes); });
    });
    for (const Compression compression : kAll) register_format(compression, at, count);
  }
}

void print_errors(const char* name, const std::vector<float>& values) {
  for (const Compression compression : kAll) {
    std::vector<std::byte> blocks(blocks_of(values.size()) * block_bytes(compression));
    std::vector<float> read(values.size());
    quantise(compression, blocks.data(), values.data(), values.size());
    dequantise(compression, read.data(), blocks.data(), values.size());
    double squares = 0, errors = 0, largest = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = double{values[i]} - double{read[i]};
      squares += double{values[i]} * double{values[i]};
      errors += error * error;
      largest = std::max(largest, std::abs(error));
    }
    std::printf("%-12s %-12s blocks of %zu: %.3f bytes a value, error %.5f, largest error / bound %.3f\n", name,
                std::string(name_of(compression)).c_str(), kBlockElements,
                static_cast<double>(block_bytes(compression)) / kBlockElements, std::sqrt(errors / squares),
                largest / error_bound(compression, blocks.data(), values.size()));
  }
}

void print_all_errors() {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> heavy(3);
  std::vector<float> values(std::size_t{1} << 20);
  for (float& value : values) value = normal(random);
  print_errors("normal", values);
  for (float& value : values) value = heavy(random);
  print_errors("heavy-tailed", values);
}

}  // namespace
}  // namespace fdl

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  fdl::print_all_errors();
  fdl::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
