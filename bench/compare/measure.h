// Measures every library by the same method: cold, modified buffers, batches of short calls, the slowest rank's time.
//
// Each size rotates through more memory than the last-level cache holds. Sizes up to 32 KiB use two places that stay
// warm, because an application has usually just written so small a tensor. Used buffers are rewritten between the timed
// batches. Results are checked once for each size with ==: inputs are small integers, so that a sum is exact in any
// order. The output is one JSON object for each size.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace compare {

// The interface that the method needs of a library. All ranks make the same calls. A failure ends the process.
class Library {
 public:
  virtual ~Library() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void barrier() = 0;
  virtual void allreduce(const float* input, float* output, std::size_t count) = 0;
  virtual void max(std::vector<double>& values) = 0;  // elementwise over all ranks
  virtual void from_first_rank(double& value) = 0;    // broadcasts rank 0's value
  virtual float* allocate(std::size_t count) = 0;     // never freed: the process ends with its measurement
  virtual bool sums() const { return true; }          // false: a limit, whose result is not checked
  bool crowded() const { return size() > ::sysconf(_SC_NPROCESSORS_ONLN); }
};

struct Options {
  std::vector<std::size_t> sizes = {4, 1024, 1 << 20};  // --sizes 4,1024: bytes
  std::vector<std::size_t> tensors;                     // --tensors 64,9408: elements of each
  double seconds = 0.1;                                 // --seconds: for each size
  bool calls = false;                                   // --calls 1: the time of each call, for percentiles
  bool bound = true;                                    // --bound 0: ranks are not bound to cores
  int ranks = 2;                                        // --ranks: if the program starts them itself
  std::string mode;                                     // --mode: each program has its own modes
  std::string transport;                                // --transport
};

// Splits in place: strtok() writes into the argument.
inline std::vector<std::size_t> read_list(char* text) {
  std::vector<std::size_t> numbers;
  for (char* part = std::strtok(text, ","); part != nullptr; part = std::strtok(nullptr, ","))
    numbers.push_back(std::strtoull(part, nullptr, 10));
  return numbers;
}

inline Options read_options(int argc, char** argv) {
  Options options;
  // Every option has a value. Options of other programs are ignored, so that one command line serves all of them.
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    char* text = argv[i + 1];
    if (name == "--seconds") options.seconds = std::atof(text);
    if (name == "--ranks") options.ranks = std::max(1, std::atoi(text));
    if (name == "--calls") options.calls = std::atoi(text) != 0;
    if (name == "--bound") options.bound = std::atoi(text) != 0;
    if (name == "--mode") options.mode = text;
    if (name == "--transport") options.transport = text;
    if (name == "--sizes") options.sizes = read_list(text);
    if (name == "--tensors") options.tensors = read_list(text);
  }
  return options;
}

inline double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Ends this rank without destructors, which could wait for other ranks.
[[noreturn]] inline void stop(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(1);
}

// 0 to 7, different for each rank, element and turn.
// At most 7 a rank: a sum over 2^21 ranks is still exact in a float32.
inline float value_of(int rank, std::size_t index, int turn) {
  return static_cast<float>((index + static_cast<std::size_t>(rank) + static_cast<std::size_t>(turn)) & 7);
}

// Rewrites `count` elements that start at element `first` of the rank's memory.
inline void write_values(float* values, std::size_t count, int rank, int turn) {
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(rank, i, turn);
}

using Samples = std::vector<double>;  // microseconds of one call each, the slowest rank's

// `name` is a JSON member that identifies the measurement: "bytes" with a size, or "case" with a name.
inline void print_samples(const std::string& name, Samples samples) {
  std::sort(samples.begin(), samples.end());
  std::printf("{%s, \"samples_us\": [", name.c_str());
  for (std::size_t i = 0; i < samples.size(); ++i) std::printf("%s%.3f", i == 0 ? "" : ", ", samples[i]);
  std::printf("]}\n");
  std::fflush(stdout);
}

// Times `batch(calls)`, which makes so many calls. `between()` runs after each batch and is not timed.
template <typename Batch, typename Between>
Samples sample(Library& library, double seconds, Batch batch, Between between) {
  // With fewer cores than ranks a batch is longer, to reduce the weight of leaving the barrier late.
  const double batch_us = library.crowded() ? 2000 : 100;
  batch(1);
  between();
  library.barrier();
  // Two calls estimate the duration of one; rank 0's estimate is used everywhere, so that all ranks make as many calls.
  const double begin = now_us();
  batch(2);
  double once = (now_us() - begin) / 2;
  between();
  library.from_first_rank(once);
  const int calls = static_cast<int>(std::clamp(batch_us / once, 1.0, 1000.0));
  // At least 2 and at most 200 batches: Limit::max() has 256 entries for them.
  const int batches = static_cast<int>(std::clamp(seconds * 1e6 / (once * calls), 2.0, 200.0));
  Samples samples;
  for (int i = 0; i < batches; ++i) {
    library.barrier();
    const double start = now_us();
    batch(calls);
    samples.push_back((now_us() - start) / calls);
    between();
  }
  // A collective has ended when its slowest rank has it.
  library.max(samples);
  return samples;
}

// One rank's buffers, shared by all sizes.
struct Pool {
  float* input;
  float* output;
  std::size_t bytes;
};

// All ranks' pools together hold 8 times the last-level cache, or the largest size if that is more.
inline Pool make_pool(Library& library, const Options& options) {
  // sysconf() returns 0 or -1 in some virtual machines, hence at least 32 MiB.
  const auto cache = static_cast<std::size_t>(std::max(::sysconf(_SC_LEVEL3_CACHE_SIZE), 32L << 20));
  const std::size_t largest = *std::max_element(options.sizes.begin(), options.sizes.end());
  const std::size_t beyond = 8 * cache / static_cast<std::size_t>(library.size());
  const std::size_t bytes = std::max(largest, beyond);
  Pool pool = {library.allocate(bytes / sizeof(float)), library.allocate(bytes / sizeof(float)), bytes};
  write_values(pool.input, bytes / sizeof(float), library.rank(), 0);
  std::memset(static_cast<void*>(pool.output), 0, bytes);
  return pool;
}

inline void check_sum(Library& library, const Pool& pool, std::size_t count) {
  write_values(pool.input, count, library.rank(), 0);
  library.allreduce(pool.input, pool.output, count);
  // Every element is compared, on every rank.
  for (std::size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int rank = 0; rank < library.size(); ++rank) sum += value_of(rank, i, 0);
    if (pool.output[i] != sum) stop("wrong sum at element " + std::to_string(i) + " of " + std::to_string(count));
  }
}

inline void measure_size(Library& library, const Pool& pool, std::size_t bytes, double seconds) {
  const std::size_t count = bytes / sizeof(float);
  if (library.sums()) check_sum(library, pool, count);
  // Places begin at pages, so that all have the same alignment.
  const std::size_t stride = (bytes + 4095) / 4096 * 4096 / sizeof(float);
  const std::size_t places = bytes <= 32768 ? 2 : pool.bytes / (stride * sizeof(float));
  std::size_t turn = 0;
  std::size_t written = 0;
  const auto batch = [&](int calls) {
    for (int i = 0; i < calls; ++i, ++turn) {
      const std::size_t place = turn % places * stride;
      library.allreduce(pool.input + place, pool.output + place, count);
    }
  };
  const auto between = [&] {
    // Only the places that were used since the last call, each at most once.
    written = std::max(written, turn - std::min(turn, places));
    for (; written < turn; ++written)
      write_values(pool.input + written % places * stride, count, library.rank(), static_cast<int>(written));
  };
  const Samples samples = sample(library, seconds, batch, between);
  if (library.rank() == 0) print_samples("\"bytes\": " + std::to_string(bytes), samples);
}

// Prints the percentiles of rank 0's calls, each timed by itself, with warm buffers. Ranks agree on the end once in 100
// calls, which is not timed.
inline void measure_calls(Library& library, std::size_t bytes, double seconds) {
  const std::size_t count = bytes / sizeof(float);
  const Pool pool = {library.allocate(count), library.allocate(count), bytes};
  check_sum(library, pool, count);
  Samples samples;
  library.barrier();
  const double end = now_us() + seconds * 1e6;
  for (double goes_on = 1; goes_on != 0;) {
    for (int i = 0; i < 100; ++i) {
      const double begin = now_us();
      library.allreduce(pool.input, pool.output, count);
      samples.push_back(now_us() - begin);
    }
    goes_on = now_us() < end ? 1 : 0;
    library.from_first_rank(goes_on);
  }
  if (library.rank() != 0) return;
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double part) {
    return samples[static_cast<std::size_t>(part * static_cast<double>(samples.size()))];
  };
  std::printf("{\"bytes\": %zu, \"calls\": %zu, \"median_us\": %.3f, \"p90_us\": %.3f, \"p99_us\": %.3f}\n", bytes,
              samples.size(), at(0.5), at(0.9), at(0.99));
  std::fflush(stdout);
}

inline void measure_sizes(Library& library, const Options& options) {
  if (options.calls) {
    for (const std::size_t bytes : options.sizes) measure_calls(library, bytes, options.seconds);
    return;
  }
  const Pool pool = make_pool(library, options);
  for (const std::size_t bytes : options.sizes) measure_size(library, pool, bytes, options.seconds);
}

}  // namespace compare
