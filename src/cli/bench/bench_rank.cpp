// Times are medians and minima of many repetitions, each the slowest rank's time. Buffers rotate through more memory
// than the last-level cache holds. algbw and busbw are those of nccl-tests (doc/PERFORMANCE.md of NVIDIA/nccl-tests).
#include "cli/bench/bench_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "cli/bench/bench_limits.h"
#include "cli/collective_call.h"
#include "cli/json_line.h"
#include "cli/local_ranks.h"
#include "cli/opened_world.h"
#include "cli/subcommands.h"
#include "data/half.h"

namespace fdl {
namespace {

constexpr std::size_t kRotatedBytes = std::size_t{192} << 20;  // of each buffer, shared by the ranks
constexpr double kSecondsPerSize = 0.6;
constexpr int kMostSamples = 200;

int fail(int rank) {
  const fdl_error* error = fdl_last_error();
  fmt::print(stderr, "farandole bench: rank {}: {} ({})\n", rank, error->text, fdl_result_name(error->code));
  return exit_code_of(error->code);
}

// Without --launched the world is described by arguments, so the environment of a launcher is ignored.
bool open_world(const BenchOptions& options, int rank, OpenedWorld& opened) {
  const char* knobs[] = {"transport", options.transport.c_str()};
  return opened.open({.launched = options.launched,
                      .rank = rank,
                      .size = options.ranks,
                      .rendezvous = options.rendezvous,
                      .job_key = "farandole bench on one host"},
                     knobs);
}

// busbw = algbw * factor: the bytes that one link carries for each byte of the vector.
double busbw_factor(const BenchOptions& options) {
  const double p = options.ranks;
  switch (options.collective) {
    case FDL_ALLREDUCE:
      return 2 * (p - 1) / p;
    case FDL_ALLGATHER:
    case FDL_REDUCE_SCATTER:
    case FDL_ALLTOALL:
      return (p - 1) / p;
    default:
      return 1;
  }
}

CollectiveCall call_of(const BenchOptions& options) {
  return {.collective = options.collective,
          .dtype = options.dtype,
          .ranks = options.ranks,
          .compression = options.compression};
}

fdl_result call(const BenchOptions& options, fdl_comm* comm, void* input, void* output, std::size_t count,
                double* error_bound = nullptr) {
  return call_of(options).run(comm, input, output, count, options.algorithm, error_bound);
}

// ---- Results that can be checked with == ----

// Values are small integers, so that every type holds every sum exactly: 1 on rank 0 and 0 or 1 elsewhere.
int value_of(int rank, std::size_t index) {
  return rank == 0 ? 1 : static_cast<int>((index + static_cast<std::size_t>(rank)) & 1);
}

void put(fdl_dtype dtype, void* memory, std::size_t index, int value) {
  switch (dtype) {
    case FDL_FLOAT32:
      static_cast<float*>(memory)[index] = static_cast<float>(value);
      return;
    case FDL_FLOAT64:
      static_cast<double*>(memory)[index] = value;
      return;
    case FDL_FLOAT16:
      static_cast<uint16_t*>(memory)[index] = float_to_float16(static_cast<float>(value));
      return;
    case FDL_BFLOAT16:
      static_cast<uint16_t*>(memory)[index] = float_to_bfloat16(static_cast<float>(value));
      return;
    case FDL_FLOAT8_E4M3:
      static_cast<uint8_t*>(memory)[index] = float_to_float8_e4m3(static_cast<float>(value));
      return;
    case FDL_FLOAT8_E5M2:
      static_cast<uint8_t*>(memory)[index] = float_to_float8_e5m2(static_cast<float>(value));
      return;
    default: {
      const auto wide = static_cast<int64_t>(value);  // little-endian: the low bytes are the number
      std::memcpy(static_cast<char*>(memory) + index * fdl_dtype_size(dtype), &wide, fdl_dtype_size(dtype));
    }
  }
}

void fill(const BenchOptions& options, int rank, void* memory, std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) put(options.dtype, memory, i, value_of(rank, i));
}

int expected(const BenchOptions& options, int rank, std::size_t index, const Extent& extent) {
  const auto sum_at = [&](std::size_t at) {
    int sum = 0;
    for (int r = 0; r < options.ranks; ++r) sum += value_of(r, at);
    return options.dtype == FDL_BOOL ? (sum != 0 ? 1 : 0) : sum;
  };
  const std::size_t block = extent.count == 0 ? 0 : index / extent.count;
  const std::size_t within = extent.count == 0 ? 0 : index % extent.count;
  switch (options.collective) {
    case FDL_ALLGATHER:
    case FDL_GATHER:
      return value_of(static_cast<int>(block), within);
    case FDL_REDUCE_SCATTER:
      return sum_at(static_cast<std::size_t>(rank) * extent.count + index);
    case FDL_SCATTER:
      return value_of(0, static_cast<std::size_t>(rank) * extent.count + index);
    case FDL_ALLTOALL:
      return value_of(static_cast<int>(block), static_cast<std::size_t>(rank) * extent.count + within);
    case FDL_BROADCAST:
      return value_of(0, index);
    default:
      return sum_at(index);
  }
}

bool has_result(const BenchOptions& options, int rank) {
  return rank == 0 || (options.collective != FDL_REDUCE && options.collective != FDL_GATHER);
}

// The index of the first wrong element, or -1. Bytes are compared, since each value has one representation; a
// compressed result may be off by `error_bound`.
int64_t first_wrong(const BenchOptions& options, int rank, const std::vector<std::byte>& output, const Extent& extent,
                    double error_bound) {
  if (!has_result(options, rank)) return -1;
  std::vector<std::byte> one(fdl_dtype_size(options.dtype));
  for (std::size_t i = 0; i < extent.output; ++i) {
    if (options.compression != FDL_COMPRESSION_NONE) {
      float value;
      std::memcpy(&value, output.data() + i * sizeof value, sizeof value);
      if (!(std::abs(value - expected(options, rank, i, extent)) <= error_bound)) return static_cast<int64_t>(i);
      continue;
    }
    put(options.dtype, one.data(), 0, expected(options, rank, i, extent));
    if (std::memcmp(one.data(), output.data() + i * one.size(), one.size()) != 0) return static_cast<int64_t>(i);
  }
  return -1;
}

// Checks one call before the size is timed.
int check_size(const BenchOptions& options, int rank, fdl_comm* comm, const Extent& extent) {
  std::vector<std::byte> input(extent.input * fdl_dtype_size(options.dtype));
  std::vector<std::byte> output(extent.output * fdl_dtype_size(options.dtype));
  fill(options, rank, input.data(), extent.input);
  if (options.collective == FDL_BROADCAST && rank == 0) fill(options, rank, output.data(), extent.output);
  double error_bound = 0;
  if (call(options, comm, input.data(), output.data(), extent.count, &error_bound) != FDL_OK) return fail(rank);
  const int64_t wrong = first_wrong(options, rank, output, extent, error_bound);
  if (wrong < 0) return kExitOk;
  fmt::print(stderr, "farandole bench: rank {}: {} of {} elements is wrong at element {}\n", rank,
             options.collective_name, extent.output, wrong);
  return kExitBug;
}

// ---- Time ----

// Seconds of one call.

struct Timing {
  double median_s = 0;
  double least_s = 0;
};

// The memory that a size rotates through: `copies` buffers of `stride` bytes, each aligned to a cache line.
struct Rotation {
  std::vector<std::byte> input;
  std::vector<std::byte> output;
  std::size_t stride = 0;
  std::size_t copies = 1;
};

Rotation rotation_of(const BenchOptions& options, const Extent& extent) {
  Rotation rotation;
  const std::size_t bytes = std::max(extent.input, extent.output) * fdl_dtype_size(options.dtype);
  rotation.stride = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
  const std::size_t share = kRotatedBytes / static_cast<std::size_t>(options.ranks);
  // Small sizes are measured warm: an application has usually just written so little data.
  rotation.copies = bytes < 65536 ? 2 : std::clamp<std::size_t>(share / rotation.stride, 2, 256);
  // Blocks of zeros would be quantised more quickly than others.
  const bool compressed = options.compression != FDL_COMPRESSION_NONE;
  rotation.input.assign(rotation.stride * rotation.copies, compressed ? std::byte{0x3c} : std::byte{0});
  rotation.output.assign(rotation.stride * rotation.copies, std::byte{0});
  return rotation;
}

bool time_size(const BenchOptions& options, fdl_comm* comm, const Extent& extent, Timing& timing) {
  Rotation memory = rotation_of(options, extent);
  std::size_t turn = 0;
  const auto run = [&](int calls) {
    const int64_t begin = now_ns();
    for (int i = 0; i < calls; ++i, ++turn) {
      const std::size_t at = turn % memory.copies * memory.stride;
      if (call(options, comm, memory.input.data() + at, memory.output.data() + at, extent.count) != FDL_OK) return -1.0;
    }
    return static_cast<double>(now_ns() - begin) * 1e-9 / calls;
  };
  // All ranks must make the same number of calls, so rank 0 broadcasts the time of one call.
  if (run(2) < 0) return false;
  double once = run(3);
  if (once < 0 || fdl_broadcast(comm, &once, 1, FDL_FLOAT64, 0) != FDL_OK) return false;
  // Short calls are measured in batches, because one call is close to the clock's resolution. A barrier also releases
  // some ranks one message latency before others, and a rank that is late to one call is late to the next. Between
  // hosts that latency is long, so a longer batch reduces its weight.
  const double batch_s = options.several_hosts ? 20e-3 : 20e-6;
  const int calls = std::clamp(static_cast<int>(batch_s / once), 1, 100);
  const int samples = std::clamp(static_cast<int>(kSecondsPerSize / (once * calls)), 5, kMostSamples);
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) {
    if (fdl_barrier(comm) != FDL_OK) return false;
    seconds.push_back(run(calls));
    if (seconds.back() < 0) return false;
  }
  if (fdl_allreduce(comm, seconds.data(), seconds.data(), seconds.size(), FDL_FLOAT64, FDL_MAX) != FDL_OK) return false;
  std::sort(seconds.begin(), seconds.end());
  timing = {seconds[seconds.size() / 2], seconds.front()};
  return true;
}

// ---- The table ----

void print_header(const BenchOptions& options, const char* transports, double copy_GBps) {
  fmt::print("# {} {}, {} ranks over {}, algorithm {}; memcpy of one core with all copying: {:.1f} GB/s\n",
             options.collective_name, fdl_dtype_name(options.dtype), options.ranks, transports, options.algorithm,
             copy_GBps);
  fmt::print("# {:>12} {:>12} {:>12} {:>10} {:>10} {:>14} {:>8}\n", "bytes", "median us", "min us", "algbw GB/s",
             "busbw GB/s", "bound GB/s", "reached");
}

struct Line {
  std::size_t bytes = 0;
  Timing timing;
  double bound_GBps = 0;  // the algbw that the machine's limit allows; 0: unknown
};

void print_line(const BenchOptions& options, const char* transports, const Line& line) {
  const double algbw = static_cast<double>(line.bytes) * 1e-9 / line.timing.median_s;
  const double busbw = algbw * busbw_factor(options);
  if (options.json) {
    JsonLine json;
    json.text("collective", options.collective_name).text("transport", transports).text("algorithm", options.algorithm);
    json.number("ranks", static_cast<long long>(options.ranks)).number("bytes", static_cast<long long>(line.bytes));
    if (options.compression != FDL_COMPRESSION_NONE)
      json.text("compression", fdl_compression_name(options.compression));
    json.text("dtype", fdl_dtype_name(options.dtype)).number("time_us_median", line.timing.median_s * 1e6);
    json.number("time_us_min", line.timing.least_s * 1e6).number("algbw_GBps", algbw).number("busbw_GBps", busbw);
    fmt::print("{}\n", json.str());
  } else {
    fmt::print("  {:>12} {:>12.2f} {:>12.2f} {:>10.3f} {:>10.3f}", line.bytes, line.timing.median_s * 1e6,
               line.timing.least_s * 1e6, algbw, busbw);
    if (line.bound_GBps > 0) {
      fmt::print(" {:>14.2f} {:>7.0f}%\n", line.bound_GBps, 100 * algbw / line.bound_GBps);
    } else {
      fmt::print(" {:>14} {:>8}\n", "-", "-");
    }
  }
  std::fflush(stdout);
}

}  // namespace

int bench_rank(const BenchOptions& all_options, int rank) {
  OpenedWorld opened;
  if (!open_world(all_options, rank, opened)) return fail(rank);
  fdl_world_facts facts{};
  facts.struct_size = sizeof facts;
  if (fdl_world_info(opened.world, &facts) != FDL_OK) return fail(rank);
  BenchOptions options = all_options;
  options.ranks = facts.size;
  options.several_hosts = facts.local_size < facts.size;
  rank = facts.rank;
  const bool over_tcp = std::string(facts.transports) == "tcp" && !options.launched;
  const double copy_GBps = options.json ? 0 : copy_bandwidth(opened.comm);
  if (rank == 0 && !options.json) print_header(options, facts.transports, copy_GBps);
  for (const std::size_t size : options.sizes) {
    const Extent extent = call_of(options).extent_of(size);
    const std::size_t bytes = call_of(options).bytes_of(extent);
    if (const int code = check_size(options, rank, opened.comm, extent); code != kExitOk) return code;
    Line line{.bytes = bytes};
    if (!time_size(options, opened.comm, extent, line.timing)) return fail(rank);
    if (!options.json) {
      const auto moved = static_cast<std::size_t>(static_cast<double>(bytes) * busbw_factor(options));
      // `moved` is what a rank sends during the call; the bound is the time of the same exchange on a bare socket.
      const double bare_s = over_tcp ? bare_exchange_s(opened.comm, moved) : 0;
      line.bound_GBps = bare_s > 0 ? static_cast<double>(bytes) * 1e-9 / bare_s : over_tcp ? 0 : copy_GBps;
    }
    if (rank == 0) print_line(options, facts.transports, line);
  }
  return kExitOk;
}

}  // namespace fdl
