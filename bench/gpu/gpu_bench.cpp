// Checks the device's kernels bit for bit against the CPU's, then measures them beside a copy within the device.
//
//   gpu_bench [--device N] [--library libcuda.so.1] [--check] [--json FILE]
//
// --check makes only the checks (for compute-sanitizer, and for machines whose times are meaningless).
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bench/gpu/bits.h"
#include "bench/gpu/ending.h"
#include "bench/gpu/words.h"
#include "bench/times.h"
#include "cli/simulate/resnet50.h"
#include "cuda/cuda_device.h"
#include "data/half.h"
#include "data/reduce.h"

namespace {

using namespace fdl;
using namespace gpu_bench;
using bench::Times;

// Filled by read(); the configuration has the driver that --library names.
struct Options {
  Config config;
  int device = 0;
  bool check_only = false;
  std::string json;
};

// A stream of the device, a notifier for its completion, and memory that is released with this object.
class Bench {
 public:
  explicit Bench(Device& of_device)
      : device(of_device), stream(stop_unless(device.make_stream())), notifier_(stop_unless(Event::make())) {}
  ~Bench() {
    device.end_stream(stream);
    for (void* memory : memory_) device.release(memory);
  }

  // Blocks until the stream has done all work that was queued before.
  void finish() {
    stop_unless(device.ring(stream, notifier_));
    pollfd entry{notifier_.fd(), POLLIN, 0};
    // A failed device never notifies, so query the event once a second.
    const DeviceEvent event = stop_unless(device.make_event());
    stop_unless(device.set(event, stream));
    while (::poll(&entry, 1, 1000) == 0) (void)stop_unless(device.reached(event));
    device.end_event(event);
    notifier_.clear();
  }

  std::byte* allocate(std::size_t bytes) {
    memory_.push_back(stop_unless(device.allocate(bytes)));
    return static_cast<std::byte*>(memory_.back());
  }

  // Returns when the bytes are on the device, `offset` bytes behind an allocation's begin.
  std::byte* upload(const std::vector<std::byte>& bytes, std::size_t offset = 0) {
    std::byte* const memory = allocate(bytes.size() + offset) + offset;
    stop_unless(device.copy(stream, memory, bytes.data(), bytes.size()));
    finish();
    return memory;
  }

  std::vector<std::byte> download(const std::byte* memory, std::size_t bytes) {
    std::vector<std::byte> host(bytes);
    stop_unless(device.copy(stream, host.data(), memory, bytes));
    finish();
    return host;
  }

  Device& device;
  Stream stream;

 private:
  Event notifier_;
  std::vector<void*> memory_;
};

// ---- Checks ----

// Any wrong one makes the exit code 4.
Bits results;

// Every type with every operation, aligned and unscaled as well as misaligned by one element and scaled.
void check_reductions(Device& device, std::mt19937_64& random) {
  for (int d = 0; d < kDtypeCount; ++d) {
    for (int o = 0; o < kOpCount; ++o) {
      const auto dtype = static_cast<Dtype>(d);
      const auto op = static_cast<Op>(o);
      if (!supports(dtype, op) || op == Op::user) continue;
      // 0.375 is exact in every real type and makes integers round toward zero. 1.0 / 3 divides reals.
      for (const auto& [offset, factor] :
           {std::pair(std::size_t{0}, 1.0), std::pair(size_of(dtype), 0.375), std::pair(size_of(dtype), 1.0 / 3)}) {
        Bench bench(device);
        // A prime: no vector width or block size divides it, so the tails of all kernels run.
        const std::size_t count = 20011, bytes = count * size_of(dtype);
        std::vector<std::vector<std::byte>> hosts;
        std::vector<const void*> on_host, on_device;
        for (int source = 0; source < 3; ++source) hosts.push_back(numbers(bytes, random));
        for (const auto& host : hosts) on_host.push_back(host.data());
        for (const auto& host : hosts) on_device.push_back(bench.upload(host, offset));
        std::vector<std::byte> expected(bytes);
        // The CPU's kernels are the reference; they are compared with the scalar conversions in the unit tests.
        reduce_many(dtype, {op}, expected.data(), on_host, count);
        scale(dtype, expected.data(), expected.data(), count, factor);
        std::byte* const target = bench.allocate(bytes + offset) + offset;
        stop_unless(device.reduce(bench.stream, dtype, op, target, on_device, count, factor));
        results.expect_equal(
            dtype, bench.download(target, bytes), expected,
            std::string(name_of(op)) + " of " + std::string(name_of(dtype)) + (offset ? ", scaled" : ""));
      }
    }
  }
}

// 300 tensors with gaps between them in one block, some of them not aligned to 256 bytes.
void check_packing(Device& device, std::mt19937_64& random) {
  for (int d = 0; d < kDtypeCount; ++d) {
    for (const double factor : {1.0, 0.375, 1.0 / 3}) {
      Bench bench(device);
      const auto dtype = static_cast<Dtype>(d);
      const std::size_t size = size_of(dtype);
      std::vector<DeviceSegment> segments;
      std::vector<std::size_t> places;
      std::size_t all = 0, block_bytes = 0;
      for (std::size_t i = 0; i < 300; ++i) {
        // Sizes from 1 to 2003 elements, in an irregular order.
        const std::size_t count = i * i % 2003 + 1;
        places.push_back(block_bytes + (i % 7 == 0 ? size : 0));
        segments.push_back({nullptr, all, count});
        all += count;
        // The next multiple of 256 bytes behind the tensor and its shift by one element.
        block_bytes += (count + 1) * size / 256 * 256 + 256;
      }
      const std::vector<std::byte> host = numbers(block_bytes, random);
      std::byte* const block = bench.upload(host);
      // The block keeps its bytes between the tensors: unpacking must not write there.
      std::vector<std::byte> expected(all * size), expected_block = host;
      for (std::size_t i = 0; i < segments.size(); ++i) {
        segments[i].tensor = block + places[i];
        std::byte* const part = expected.data() + segments[i].first * size;
        scale(dtype, part, host.data() + places[i], segments[i].count, factor);
        std::memcpy(expected_block.data() + places[i], part, segments[i].count * size);
      }
      std::byte* const packed = bench.allocate(expected.size());
      stop_unless(device.pack(bench.stream, segments, dtype, packed, dtype, factor));
      results.expect_equal(dtype, bench.download(packed, expected.size()), expected,
                           "pack of " + std::string(name_of(dtype)));
      stop_unless(device.unpack(bench.stream, segments, dtype, packed, dtype, 1.0));
      results.expect_equal(dtype, bench.download(block, block_bytes), expected_block,
                           "unpack of " + std::string(name_of(dtype)));
    }
  }
}

// Converts float32 to the small reals: every pattern of the upper half of a float with four lower halves.
void check_rounding(Device& device) {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    // Lower halves: exact, a small rest, a tie of bfloat16, and just above the tie.
    for (const uint32_t lower : {0u, 0x1000u, 0x8000u, 0x8001u}) {
      const uint32_t bits = upper << 16 | lower;
      float value;
      std::memcpy(&value, &bits, 4);
      // NaN is left out: its bits are unspecified.
      if (value == value) values.push_back(value);
    }
  }
  std::vector<std::byte> host(values.size() * 4);
  std::memcpy(host.data(), values.data(), host.size());
  for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16, Dtype::float8_e4m3, Dtype::float8_e5m2}) {
    Bench bench(device);
    std::vector<std::byte> expected;
    for (const float value : values) {
      const uint16_t bits = dtype == Dtype::float16       ? float_to_float16(value)
                            : dtype == Dtype::bfloat16    ? float_to_bfloat16(value)
                            : dtype == Dtype::float8_e4m3 ? float_to_float8_e4m3(value)
                                                          : float_to_float8_e5m2(value);
      for (std::size_t i = 0; i < size_of(dtype); ++i) expected.push_back(static_cast<std::byte>(bits >> 8 * i));
    }
    std::byte* const packed = bench.allocate(expected.size());
    const DeviceSegment segment[] = {{bench.upload(host), 0, values.size()}};
    stop_unless(device.pack(bench.stream, segment, Dtype::float32, packed, dtype, 1.0));
    results.expect_equal(dtype, bench.download(packed, expected.size()), expected,
                         "float32 to " + std::string(name_of(dtype)));
  }
}

// ---- Times ----

// The time of one call among kQueued that are queued together, by the host's clock. `call` gets a number by which it
// rotates its buffers.
Times measure(Bench& bench, const std::function<void(int)>& call) {
  // Twenty calls hide the launch of all but the first; two rounds are not counted.
  constexpr int kQueued = 20, kRounds = 15;
  std::vector<double> all;
  for (int round = -2; round < kRounds; ++round) {
    const int64_t begin = now_ns();
    for (int i = 0; i < kQueued; ++i) call(i);
    bench.finish();
    if (round >= 0) all.push_back(static_cast<double>(now_ns() - begin) / 1000 / kQueued);
  }
  return Times::of(std::move(all));
}

struct Report {
  std::FILE* json = nullptr;

  // `moved`: bytes read and written. `limit`: GB/s of a copy within the device; 0: this line is that copy.
  double line(const std::string& what, std::size_t bytes, double moved, Times times, double limit) {
    const double gbps = moved / times.median_us / 1000;
    std::printf("%-34s %10zu B %10.1f us %10.1f us %8.0f GB/s %8.0f GB/s %6.2f\n", what.c_str(), bytes, times.median_us,
                times.least_us, gbps, limit == 0 ? gbps : limit, limit == 0 ? 1.0 : gbps / limit);
    if (json != nullptr) {
      std::fprintf(
          json,
          "{\"bench\": \"kernels\", \"what\": \"%s\", \"bytes\": %zu, \"time_us_median\": %.2f, \"time_us_min\": %.2f, "
          "\"moved_GBps\": %.1f, \"limit_GBps\": %.1f}\n",
          what.c_str(), bytes, times.median_us, times.least_us, gbps, limit == 0 ? gbps : limit);
    }
    return gbps;
  }
};

constexpr int kSets = 3;  // of buffers, used in turn, so that no cache holds the next set

// Packs into one block and unpacks again, as fusion does for each bucket.
void time_packing(Device& device, Report& report, const std::string& name, const std::vector<std::size_t>& sizes,
                  Dtype in_packed, double factor, double limit) {
  Bench bench(device);
  std::size_t all = 0;
  std::vector<std::vector<DeviceSegment>> segments(kSets);
  std::vector<std::byte*> packed;
  for (const std::size_t size : sizes) {
    for (auto& set : segments) set.push_back({bench.allocate(size * 4), all, size});
    all += size;
  }
  for (int set = 0; set < kSets; ++set) packed.push_back(bench.allocate(all * size_of(in_packed)));
  // Each element is read as 4 bytes and written in the packed type, or the reverse.
  const double moved = static_cast<double>(all * (4 + size_of(in_packed)));
  const auto set_of = [](int i) { return static_cast<std::size_t>(i % kSets); };
  report.line("pack " + name, all * 4, moved,
              measure(bench,
                      [&](int i) {
                        stop_unless(device.pack(bench.stream, segments[set_of(i)], Dtype::float32, packed[set_of(i)],
                                                in_packed, factor));
                      }),
              limit);
  report.line("unpack " + name, all * 4, moved,
              measure(bench,
                      [&](int i) {
                        stop_unless(device.unpack(bench.stream, segments[set_of(i)], Dtype::float32, packed[set_of(i)],
                                                  in_packed, factor));
                      }),
              limit);
}

void time_reduction(Device& device, Report& report, Dtype dtype, Op op, int source_count, double limit) {
  Bench bench(device);
  // 64 MiB for each source, in three sets: together more than the L2 cache of a device.
  const std::size_t bytes = std::size_t{64} << 20;
  std::vector<std::byte*> targets;
  std::vector<std::vector<const void*>> sources(kSets);
  for (auto& set : sources) {
    for (int i = 0; i < source_count; ++i) set.push_back(bench.allocate(bytes));
    targets.push_back(bench.allocate(bytes));
  }
  const std::string what =
      std::string(name_of(op)) + " " + std::to_string(source_count) + " x " + std::string(name_of(dtype));
  report.line(what, bytes, static_cast<double>(bytes) * (source_count + 1),
              measure(bench,
                      [&](int i) {
                        const auto set = static_cast<std::size_t>(i % kSets);
                        stop_unless(device.reduce(bench.stream, dtype, op, targets[set], sources[set],
                                                  bytes / size_of(dtype), 1.0));
                      }),
              limit);
}

// Returns GB/s, the limit of all other lines.
double time_copy(Device& device, Report& report, std::size_t bytes) {
  Bench bench(device);
  std::vector<std::byte*> from, to;
  for (int set = 0; set < kSets; ++set) {
    from.push_back(bench.allocate(bytes));
    to.push_back(bench.allocate(bytes));
  }
  return report.line("copy within the device (limit)", bytes, 2.0 * static_cast<double>(bytes),
                     measure(bench,
                             [&](int i) {
                               const auto set = static_cast<std::size_t>(i % kSets);
                               stop_unless(device.copy(bench.stream, to[set], from[set], bytes));
                             }),
                     0);
}

void time_all(Device& device, Report& report) {
  std::printf("\n%-34s %12s %13s %13s %13s %13s %6s\n", "", "", "median", "minimum", "moved", "limit", "ratio");
  const std::vector<std::size_t> resnet = fdl::resnet50();
  std::size_t all = 0;
  for (const std::size_t size : resnet) all += size;
  // A copy reads and writes each byte once: the highest rate that a kernel of this kind can have.
  const double limit = time_copy(device, report, all * 4);
  time_packing(device, report, "ResNet-50, float32", resnet, Dtype::float32, 1.0, limit);
  time_packing(device, report, "ResNet-50, float32, scaled", resnet, Dtype::float32, 0.125, limit);
  time_packing(device, report, "ResNet-50 as bfloat16", resnet, Dtype::bfloat16, 0.125, limit);
  time_packing(device, report, "ResNet-50 as float16", resnet, Dtype::float16, 0.125, limit);
  time_packing(device, report, "one of 64 MiB as bfloat16", {std::size_t{16} << 20}, Dtype::bfloat16, 1.0, limit);
  time_packing(device, report, "1000 of 4 KiB", std::vector<std::size_t>(1000, 1024), Dtype::float32, 1.0, limit);
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float8_e4m3, Dtype::float8_e5m2,
                            Dtype::float64, Dtype::int32, Dtype::int8}) {
    time_reduction(device, report, dtype, Op::sum, 2, limit);
  }
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) time_reduction(device, report, dtype, Op::sum, 8, limit);
  time_reduction(device, report, Dtype::float32, Op::max, 2, limit);
}

Options read(int count, char** words) {
  Options options;
  read_words(count, words,
             {word_alone("--check", [&] { options.check_only = true; }),
              word_with_value("--device", [&](const std::string& value) { options.device = std::atoi(value.c_str()); }),
              word_with_value("--json", [&](const std::string& value) { options.json = value; }),
              word_with_value("--library", [&](const std::string& value) { options.config.cuda_library = value; })});
  return options;
}

}  // namespace

int main(int count, char** words) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines appear at once in a pipe too
  const Options options = read(count, words);
  auto opened = open_cuda_device(options.device, options.config);
  if (!opened.ok()) {
    std::fprintf(stderr, "gpu_bench: there is no device to measure: %s\n", opened.status().text().c_str());
    return kNone;
  }
  const std::shared_ptr<Device> device = opened.take();
  std::printf("%s\n", std::string(device->name()).c_str());
  constexpr unsigned kSeed = 1;
  std::mt19937_64 random(kSeed);
  check_reductions(*device, random);
  check_packing(*device, random);
  check_rounding(*device);
  std::printf("%d checks against the CPU's kernels (seed %u), %d wrong\n", results.checks, kSeed, results.wrong);
  if (results.wrong > 0) return kWrong;
  if (options.check_only) return 0;
  Report report;
  if (!options.json.empty()) report.json = std::fopen(options.json.c_str(), "a");
  time_all(*device, report);
  if (report.json != nullptr) std::fclose(report.json);
  return 0;
}
