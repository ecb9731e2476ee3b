// memory_bench measures collectives on memory that all ranks map, in microseconds, beside memcpy in the same run.
//
// Ranks are pinned if each can have a core. Buffers rotate through more memory than the last-level cache holds. The
// ratio divides the vector's bytes per second by those that one rank copies while all ranks copy.
// `memory_bench [ranks] [--json]`
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/times.h"
#include "tests/support/exchange.h"
#include "transports/shm/memory/shm_memory.h"
#include "transports/shm/shm_host.h"

namespace {

using namespace fdl;
using ::bench::Times;

constexpr std::size_t kRotatedBytes = 256_MiB;
// The largest vector. Input and output rotate through kRotatedBytes each, so a vector is not in a cache when its turn
// comes again.
constexpr std::size_t kLargestBytes = 64_MiB;
constexpr std::size_t kCopiedBytes = 64_MiB;  // by each memcpy, of different memory each time
constexpr int kYields = 4;                    // before a rank sleeps, if ranks share cores

// _Exit: destructors could wait for ranks that have ended. The other ranks detect the loss.
void stop(const std::string& why) {
  std::fprintf(stderr, "memory_bench: %s\n", why.c_str());
  std::_Exit(1);
}

// One way of running an allreduce.
struct Way {
  const char* name;
  Collective collective;
  bool shared;    // the buffers are in memory that the library allocated and all ranks map
  bool in_place;  // otherwise input and output are different buffers
};

// The last one copies through the slots of the collectives, because other ranks cannot read its memory.
constexpr Way kWays[] = {
    {"in place", Collective::allreduce, true, true},
    {"apart", Collective::allreduce, true, false},
    {"staged", Collective::allreduce, false, true},
};

class Rank {
 public:
  Rank(test::SharedExchange& exchange, int rank, int ranks) : rank_(rank), ranks_(ranks) {
    // Rank r runs on core r. Without a core for each rank the scheduler places them, and no rank may spin.
    if (ranks <= static_cast<int>(std::thread::hardware_concurrency())) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(rank, &set);
      ::sched_setaffinity(0, sizeof set, &set);
      spins_ = true;
    }
    config_ = Config::read(Environment::of_process()).take();
    // All members have the same host name and boot id, so they count as one host.
    Membership membership{.id = "bench", .rank = rank, .job_key = "a key for the benchmark", .config = &config_};
    for (int i = 0; i < ranks; ++i) membership.members.edit().push_back({i, "here", "here", 0});
    membership.exchange = &exchange;
    auto memory = share_memory(membership);
    if (!memory.ok()) stop(memory.status().text());
    membership.memory = memory_ = memory.take();
    auto made = make_shm_collectives(membership);
    if (!made.ok()) stop(made.status().text());
    collectives_ = made.take();
    if (!memory_) stop("the ranks have no memory that all of them map");
    auto shared = memory_->allocate(2 * kRotatedBytes);
    if (!shared.ok()) stop(shared.status().text());
    shared_ = static_cast<std::byte*>(*shared);
    ordinary_.resize(2 * kRotatedBytes);
    // Writing touches every page: page faults are not measured. Zeros stay zeros under a sum, so values never overflow.
    std::fill_n(reinterpret_cast<float*>(shared_), 2 * kRotatedBytes / sizeof(float), 0.0f);
    std::fill(ordinary_.begin(), ordinary_.end(), std::byte{0});
  }
  ~Rank() {
    // Before the memory: the collectives refer to it.
    collectives_.reset();
    memory_->release(shared_);
  }

  void report(bool json) {
    const Times copy = time_memcpy();
    // Bytes per microsecond / 1000 is GB/s (10^9).
    const double rate = static_cast<double>(kCopiedBytes) / copy.median_us / 1e3;
    if (rank_ == 0 && !json) {
      fmt::print("{} ranks; memcpy of 64 MiB gives each {:.2f} GB/s (median; best {:.2f}) when all copy\n", ranks_,
                 rate, static_cast<double>(kCopiedBytes) / copy.least_us / 1e3);
      fmt::print("{:>10}", "bytes");
      for (const Way& way : kWays) fmt::print(" | {:>9} us {:>9} {:>8}", way.name, "least", "of copy");
      fmt::print("\n");
    }
    for (std::size_t bytes = 4_KiB; bytes <= kLargestBytes; bytes *= bytes < 64_KiB ? 2 : 4) {
      if (rank_ == 0 && !json) fmt::print("{:>10}", bytes);
      for (const Way& way : kWays) print(way, bytes, time(way, bytes), rate, json);
      if (rank_ == 0 && !json) fmt::print("\n");
      std::fflush(stdout);
    }
  }

 private:
  // Blocks until done. A pinned rank spins; a rank that shares its core yields, then sleeps.
  void run(const CollectiveSpec& spec, Buffers buffers) {
    Completion completion;
    collectives_->start(spec, buffers, completion);
    int yields = 0;
    while (!completion.done) {
      if (collectives_->progress()) {
        yields = 0;
      } else if (!spins_ && yields++ < kYields) {
        ::sched_yield();
      } else if (!spins_) {
        collectives_->sleep_until_ready(Deadline::never());
      }
    }
    if (!completion.status.ok()) stop(completion.status.text());
  }
  void barrier() { run({.collective = Collective::barrier}, {}); }

  Times time(const Way& way, std::size_t bytes) {
    const std::size_t places = kRotatedBytes / bytes;
    // Short calls are timed in batches, because reading the clock and leaving the barrier take a good part of a
    // microsecond.
    const int batch = bytes <= 64_KiB ? 64 : bytes <= 1_MiB ? 8 : 1;
    const int rounds =
        static_cast<int>(std::clamp<std::size_t>(1_MiB * 600 / bytes / static_cast<std::size_t>(batch), 9, 60));
    CollectiveSpec spec{.collective = way.collective, .count = bytes / sizeof(float)};
    std::byte* memory = way.shared ? shared_ : ordinary_.data();
    std::vector<double> times;
    for (int round = -1; round < rounds; ++round) {  // round -1 is not counted
      barrier();
      const int64_t begin = now_ns();
      for (int i = 0; i < batch; ++i) {
        std::byte* input = memory + place_++ % places * bytes;
        run(spec, {input, way.in_place ? input : input + kRotatedBytes});
      }
      if (round >= 0) times.push_back(static_cast<double>(now_ns() - begin) / 1e3 / batch);
    }
    return Times::of(std::move(times));
  }

  // All ranks copy at once after a barrier, since they share the memory's bandwidth in a collective too.
  Times time_memcpy() {
    std::vector<double> times;
    // 12 rounds over 4 places of 64 MiB: no copy finds its source in a cache.
    for (std::size_t round = 0; round < 12; ++round) {
      std::byte* source = ordinary_.data() + round % (kRotatedBytes / kCopiedBytes) * kCopiedBytes;
      barrier();
      const int64_t begin = now_ns();
      std::memcpy(source + kRotatedBytes, source, kCopiedBytes);
      times.push_back(static_cast<double>(now_ns() - begin) / 1e3);
    }
    return Times::of(std::move(times));
  }

  void print(const Way& way, std::size_t bytes, const Times& times, double copy_rate, bool json) const {
    if (rank_ != 0) return;
    const double rate = static_cast<double>(bytes) / times.median_us / 1e3;
    if (!json) return fmt::print(" | {:>12.2f} {:>9.2f} {:>8.2f}", times.median_us, times.least_us, rate / copy_rate);
    fmt::print(
        // busbw is algbw * 2 (n - 1) / n: the bytes that each rank must send and receive in any allreduce.
        "{{\"collective\":\"allreduce\",\"transport\":\"shm\",\"algorithm\":\"{}\",\"ranks\":{},\"bytes\":{},\"dtype\":"
        "\"float32\",\"time_us_median\":{:.3f},\"time_us_min\":{:.3f},\"algbw_GBps\":{:.3f},\"busbw_GBps\":{:.3f},"
        "\"of_memcpy\":{:.3f}}}\n",
        way.name, ranks_, bytes, times.median_us, times.least_us, rate, rate * 2 * (ranks_ - 1) / ranks_,
        rate / copy_rate);
  }

  const int rank_;
  const int ranks_;
  bool spins_ = false;
  std::size_t place_ = 0;
  Config config_;
  std::shared_ptr<HostMemory> memory_;
  std::unique_ptr<Collectives> collectives_;
  std::byte* shared_ = nullptr;
  std::vector<std::byte> ordinary_;
};

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::max(2, std::atoi(argv[1])) : 2;
  const bool json = argc > 2 && std::strcmp(argv[2], "--json") == 0;
  fdl::test::SharedExchange exchange;
  // Each rank forks the next one and keeps the exchange, which is in shared memory.
  int rank = 0;
  while (rank + 1 < ranks && ::fork() == 0) ++rank;
  Rank(exchange, rank, ranks).report(json);
  // Each process waits for its only child, the next rank; the last one has none.
  ::wait(nullptr);
  return 0;
}
