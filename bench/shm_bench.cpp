// shm_bench measures allreduce through shared memory between forked processes, in microseconds, beside memcpy.
//
// Ranks are pinned if each can have a core. Large buffers rotate through more memory than the last-level cache holds.
// `shm_bench [ranks] [--json]`
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/times.h"
#include "tests/support/exchange.h"
#include "transports/shm/shm_host.h"

namespace {

using namespace fdl;
using ::bench::Times;

// The total size of all ranks' input buffers, and of all output buffers.
constexpr std::size_t kRotatedBytes = 512_MiB;
// If ranks share cores, yielding to another rank is faster than sleeping until a notification.
constexpr int kYields = 4;

// _Exit: destructors could wait for ranks that have ended.
void stop(const std::string& why) {
  std::fprintf(stderr, "shm_bench: %s\n", why.c_str());
  std::_Exit(1);
}

// Drives the collective until it is done: spins for spin_ns without progress, or yields if that is 0, then sleeps.
void wait(Collectives& collectives, Completion& completion, int64_t spin_ns) {
  // The moment since which nothing has moved; 0: something moved in the last pass. The clock is read only while nothing
  // moves.
  int64_t since = 0;
  int yields = 0;
  while (!completion.done) {
    if (collectives.progress()) {
      since = 0;
      yields = 0;
      continue;
    }
    if (spin_ns == 0 && yields++ < kYields) {
      ::sched_yield();
      continue;
    }
    const int64_t now = now_ns();
    if (since == 0) since = now;
    if (now - since >= spin_ns) collectives.sleep_until_ready(Deadline::never());
  }
  if (!completion.status.ok()) stop(completion.status.text());
}

class Rank {
 public:
  Rank(test::SharedExchange& exchange, int rank, int ranks)
      : rank_(rank), ranks_(ranks), rotated_(std::max(64_MiB, kRotatedBytes / static_cast<std::size_t>(ranks))) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    if (ranks <= cores) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(rank, &set);
      ::sched_setaffinity(0, sizeof set, &set);
      // The default of FARANDOLE_SPIN_US, as in an application.
      spin_ns_ = 50'000;
    }
    config_ = Config::read(Environment::of_process()).take();
    // The library does the same when ranks share cores.
    if (ranks > cores) config_.spin_us = 0;
    Membership membership{.id = "bench", .rank = rank, .job_key = "a key for the benchmark", .config = &config_};
    for (int i = 0; i < ranks; ++i) membership.members.edit().push_back({i, "here", "here", 0});
    membership.exchange = &exchange;
    auto made = make_shm_collectives(membership);
    if (!made.ok()) stop(made.status().text());
    collectives_ = made.take();
    // Inputs in the first half, outputs in the second. The assignment touches all pages.
    buffers_.assign(2 * rotated_ / sizeof(float), 1.0f);
  }

  void run(const CollectiveSpec& spec, const void* input, void* output) {
    Completion completion;
    collectives_->start(spec, {input, output}, completion);
    wait(*collectives_, completion, spin_ns_);
  }

  Times time_allreduce(std::size_t bytes) {
    // At most 64 places: the largest sizes have as many as fit.
    const std::size_t places = std::max<std::size_t>(1, std::min<std::size_t>(rotated_ / bytes, 64));
    const std::size_t used = bytes <= 64_KiB ? 1 : places;  // small ones stay in the cache, as fresh gradients do
    // A batch makes the clock's cost negligible: the smallest calls take about a microsecond.
    const int batch = bytes <= 64_KiB ? 200 : 1;
    const int rounds = static_cast<int>(std::clamp<std::size_t>(1_MiB * 400 / bytes, 10, 300));
    CollectiveSpec spec;
    spec.count = bytes / sizeof(float);
    std::vector<double> times;
    std::size_t place = 0;
    for (int round = -2; round < rounds; ++round) {  // negative rounds are not counted
      run({.collective = Collective::barrier}, nullptr, nullptr);
      const int64_t begin = now_ns();
      for (int i = 0; i < batch; ++i) {
        std::byte* input = reinterpret_cast<std::byte*>(buffers_.data()) + place * bytes;
        run(spec, input, input + rotated_);
        place = (place + 1) % used;
      }
      if (round >= 0) times.push_back(static_cast<double>(now_ns() - begin) / 1e3 / batch);
    }
    return Times::of(std::move(times));
  }

  // GB/s that one rank copies while all ranks copy.
  double time_memcpy() {
    double best = 0;
    for (int round = 0; round < 5; ++round) {
      run({.collective = Collective::barrier}, nullptr, nullptr);
      const int64_t begin = now_ns();
      // The best of five rounds, as an upper bound for the table's last column.
      std::memcpy(buffers_.data(), reinterpret_cast<std::byte*>(buffers_.data()) + rotated_, rotated_);
      best = std::max(best, static_cast<double>(rotated_) / static_cast<double>(now_ns() - begin));
    }
    return best;
  }

  void report(bool json) {
    // Measured first, in the same processes on the same cores.
    const double memcpy_rate = time_memcpy();
    if (rank_ == 0 && !json) fmt::print("{} ranks; memcpy {:.1f} GB/s a rank when all copy\n", ranks_, memcpy_rate);
    if (rank_ == 0 && !json)
      fmt::print("{:>10} {:>12} {:>12} {:>9} {:>12}\n", "bytes", "median us", "least us", "GB/s", "of memcpy");
    for (const std::size_t bytes : {4_KiB / 1024, 64_KiB / 1024, 1_KiB, 4_KiB, 8_KiB, 16_KiB, 32_KiB, 64_KiB, 128_KiB,
                                    256_KiB, 1_MiB, 4_MiB, 16_MiB, 64_MiB}) {
      // All ranks measure; rank 0 prints its own times. Its calls end when all ranks have contributed.
      const Times times = time_allreduce(bytes);
      const double rate = static_cast<double>(bytes) / times.median_us / 1e3;
      if (rank_ != 0) continue;
      if (json) {
        fmt::print(
            "{{\"collective\":\"allreduce\",\"transport\":\"shm\",\"algorithm\":\"shared "
            "memory\",\"ranks\":{},\"bytes\":{},"
            "\"dtype\":\"float32\",\"time_us_median\":{:.3f},\"time_us_min\":{:.3f},\"algbw_GBps\":{:.3f},\"busbw_"
            "GBps\":{:.3f}}}\n",
            ranks_, bytes, times.median_us, times.least_us, rate, rate * 2 * (ranks_ - 1) / ranks_);
      } else {
        fmt::print("{:>10} {:>12.2f} {:>12.2f} {:>9.2f} {:>12.2f}\n", bytes, times.median_us, times.least_us, rate,
                   rate / memcpy_rate);
      }
      std::fflush(stdout);
    }
  }

 private:
  int rank_;
  int ranks_;
  std::size_t rotated_;
  int64_t spin_ns_ = 0;
  Config config_;
  std::unique_ptr<Collectives> collectives_;
  std::vector<float> buffers_;
};

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2;
  const bool json = argc > 2 && std::strcmp(argv[2], "--json") == 0;
  test::SharedExchange exchange;
  // Each rank forks the next one and keeps the exchange, which is in shared memory.
  int rank = 0;
  while (rank + 1 < ranks && ::fork() == 0) ++rank;
  Rank(exchange, rank, ranks).report(json);
  // Each process waits for its only child, the next rank.
  ::wait(nullptr);
  return 0;
}
