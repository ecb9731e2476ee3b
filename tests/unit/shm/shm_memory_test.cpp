// These tests cover memory that all ranks of a host map: allocation, and collectives that use it without staging.
#include "transports/shm/memory/shm_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <latch>
#include <random>
#include <set>

#include "system/shared_segment.h"
#include "tests/support/collective_case.h"
#include "tests/support/collectives_by_hand.h"
#include "tests/support/descriptors.h"
#include "tests/support/participant.h"
#include "tests/support/processes/processes.h"
#include "transports/shm/memory/shm_parts.h"
#include "transports/shm/shm_host.h"

namespace fdl {
namespace {

using namespace fdl::test;
using testing::HasSubstr;

// ---- Parts ----

TEST(ShmParts, NeverHandOutAByteTwiceAndMergeAllGaps) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  constexpr std::size_t kBytes = 8_MiB;
  ShmParts parts(kBytes);
  std::map<std::size_t, std::size_t> taken;
  for (int i = 0; i < 20000; ++i) {
    if (taken.empty() || random() % 5 < 3) {
      const std::size_t unit = random() % 2 == 0 ? 64 : 4096;
      const std::size_t bytes = random() % (random() % 8 == 0 ? 2_MiB : 20_KiB);
      const auto range = parts.take(bytes, unit);
      if (!range) continue;
      ASSERT_EQ(range->begin % unit, 0u);
      ASSERT_GE(range->size(), std::max<std::size_t>(bytes, 1));
      ASSERT_LE(range->end, kBytes);
      const auto next = taken.lower_bound(range->begin);
      ASSERT_TRUE(next == taken.end() || next->first >= range->end);
      ASSERT_TRUE(next == taken.begin() || std::prev(next)->second <= range->begin);
      for (const ByteRange& run : parts.extents(*range, false)) parts.set_backed(run, true);
      ASSERT_TRUE(parts.extents(*range, false).empty());
      taken[range->begin] = range->end;
    } else {
      const auto which = std::next(taken.begin(), static_cast<std::ptrdiff_t>(random() % taken.size()));
      const ByteRange range{which->first, which->second};
      taken.erase(which);
      for (const ByteRange& unused : parts.give_back(range)) {
        ASSERT_TRUE(parts.extents(unused, true).empty());
        const auto next = taken.lower_bound(unused.begin);
        ASSERT_TRUE(next == taken.end() || next->first >= unused.end) << "ranges in use keep their memory";
        ASSERT_TRUE(next == taken.begin() || std::prev(next)->second <= unused.begin);
      }
    }
  }
  for (const auto& [begin, end] : taken) (void)parts.give_back({begin, end});
  EXPECT_EQ(parts.take(kBytes, 64), (ByteRange{0, kBytes}));
}

TEST(ShmParts, KeepALimitedAmountOfBackedMemory) {
  ShmParts parts(64_MiB);
  const auto range = parts.take(8_MiB, 4096);
  ASSERT_TRUE(range);
  parts.set_backed(*range, true);
  EXPECT_EQ(parts.give_back(*range), (std::vector<ByteRange>{{0, 8_MiB}}));
  const auto small = parts.take(ShmParts::kKept, 4096);
  parts.set_backed(*small, true);
  EXPECT_TRUE(parts.give_back(*small).empty());
  EXPECT_EQ(parts.extents({0, 64_MiB}, true), (std::vector<ByteRange>{{0, ShmParts::kKept}}));
}

TEST(ShmParts, RefuseTooLargeSizesWithoutOverflow) {
  ShmParts parts(1_MiB);
  for (const std::size_t bytes : {1_MiB + 1, ~std::size_t{0}, ~std::size_t{0} - 63, ~std::size_t{0} - 4096}) {
    EXPECT_FALSE(parts.take(bytes, 64));
    EXPECT_FALSE(parts.take(bytes, 4096));
  }
  EXPECT_TRUE(parts.take(1_MiB, 4096));
  EXPECT_FALSE(parts.take(0, 64));
  EXPECT_FALSE(ShmParts(100).take(0, 64));
}

// ---- Allocations ----

using Memory = std::shared_ptr<HostMemory>;

Memory join_memory(Participant& participant, int rank) { return require(share_memory(participant.membership(rank))); }

Config config_with(const std::map<std::string, std::string>& options) {
  return require(Config::read(Environment({}), options));
}

// Runs each rank as a thread with its memory.
void run_with_memory(int size, const std::map<std::string, std::string>& options,
                     const std::function<void(int, const Memory&, Participant&)>& work) {
  Participant participant(size);
  participant.config() = config_with(options);
  run_ranks(size, [&](int rank) {
    const Memory memory = join_memory(participant, rank);
    require(memory != nullptr, "there is memory");
    work(rank, memory, participant);
  });
}

std::byte* take(const Memory& memory, std::size_t bytes) {
  return static_cast<std::byte*>(require(memory->allocate(bytes)));
}

bool all_are(const std::byte* bytes, std::size_t count, std::byte value) {
  return std::all_of(bytes, bytes + count, [&](std::byte b) { return b == value; });
}

TEST(ShmMemory, IsZeroedAndAlignedWhenNewAndWhenReused) {
  run_with_memory(2, {}, [](int, const Memory& memory, Participant&) {
    for (int round = 0; round < 3; ++round) {
      std::vector<std::pair<std::byte*, std::size_t>> blocks;
      for (const std::size_t bytes : {0, 1, 64, 100, 4095, 4096, 70'000, 200'000, 3'000'000}) {
        std::byte* block = take(memory, bytes);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
        EXPECT_TRUE(bytes < 4096 || reinterpret_cast<uintptr_t>(block) % 4096 == 0);
        EXPECT_TRUE(all_are(block, bytes, std::byte{0})) << bytes << " bytes, round " << round;
        std::memset(block, 0xff, bytes);
        blocks.emplace_back(block, bytes);
      }
      for (const auto& [block, bytes] : blocks) {
        EXPECT_TRUE(all_are(block, bytes, std::byte{0xff}));
        memory->release(block);
      }
    }
  });
}

TEST(ShmMemory, HasTheSameContentOnAllRanks) {
  std::array<std::atomic<uint64_t>, 3> places{};
  std::latch written(3);
  std::latch read(3);
  run_with_memory(3, {}, [&](int rank, const Memory& memory, Participant&) {
    auto* mine = reinterpret_cast<uint64_t*>(take(memory, 100'000));
    mine[500] = 77 + static_cast<uint64_t>(rank);
    places[static_cast<std::size_t>(rank)] = memory->place_of(mine, 100'000).value();
    written.arrive_and_wait();
    for (std::size_t other = 0; other < 3; ++other) {
      EXPECT_EQ(reinterpret_cast<const uint64_t*>(memory->at(places[other]))[500], 77 + other);
    }
    read.arrive_and_wait();
    int outside = 0;
    EXPECT_FALSE(memory->place_of(&outside, sizeof outside));
    EXPECT_FALSE(memory->place_of(mine, ~std::size_t{0})) << "an end that wraps around";
  });
}

TEST(ShmMemory, ReportsThatItsPartIsUsedUp) {
  run_with_memory(2, {{"memory_bytes", "4M"}}, [](int, const Memory& memory, Participant&) {
    std::byte* most = take(memory, 3_MiB);
    const auto more = memory->allocate(2_MiB);
    ASSERT_FALSE(more.ok());
    EXPECT_EQ(more.status().code(), Code::unsupported);
    EXPECT_THAT(more.status().text(), HasSubstr("FARANDOLE_MEMORY_BYTES"));
    take(memory, 500_KiB);
    memory->release(most);
    take(memory, 2_MiB);
    EXPECT_FALSE(memory->allocate(~std::size_t{0}).ok());
  });
}

TEST(ShmMemory, IsNullIfDisabledOrForASingleRank) {
  Participant participant(2);
  participant.config() = config_with({{"memory_bytes", "0"}});
  EXPECT_EQ(require(share_memory(participant.membership(0))), nullptr);
  Participant alone(1);
  EXPECT_EQ(require(share_memory(alone.membership(0))), nullptr);
}

TEST(ShmMemory, ReturnsFreedMemoryToTheSystem) {
  run_with_memory(2, {}, [](int rank, const Memory& memory, Participant&) {
    if (rank != 0) return;
    const auto resident = [&] {
      struct rusage usage {};
      ::getrusage(RUSAGE_SELF, &usage);
      long pages = 0, shared = 0;
      std::FILE* file = std::fopen("/proc/self/statm", "r");
      const int read = std::fscanf(file, "%*d %*d %ld", &shared);
      std::fclose(file);
      require(read == 1, "statm can be read");
      pages = shared;
      return static_cast<std::size_t>(pages) * SharedSegment::page_bytes();
    };
    std::byte* block = take(memory, 64_MiB);
    std::memset(block, 1, 64_MiB);
    const std::size_t with = resident();
    memory->release(block);
    EXPECT_LT(resident() + 60_MiB, with);
  });
}

TEST(ShmMemory, AllocatesFromManyThreadsAtOnce) {
  run_with_memory(2, {{"memory_bytes", "64M"}}, [](int rank, const Memory& memory, Participant&) {
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<uint64_t>(rank * 10 + t));
        std::vector<std::pair<std::byte*, std::size_t>> mine;
        const auto pattern_byte = static_cast<std::byte>(t + 1);
        for (int i = 0; i < 400; ++i) {
          if (mine.size() > 20 || (!mine.empty() && random() % 2 == 0)) {
            const auto [block, bytes] = mine.back();
            mine.pop_back();
            if (!all_are(block, bytes, pattern_byte)) ++wrong;
            memory->release(block);
          }
          const std::size_t bytes = 1 + random() % 150'000;
          std::byte* block = take(memory, bytes);
          if (!all_are(block, bytes, std::byte{0})) ++wrong;
          std::memset(block, t + 1, bytes);
          mine.emplace_back(block, bytes);
        }
        for (const auto& [block, bytes] : mine) memory->release(block);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  });
}

TEST(ShmMemory, IsNotReleasedByAForkedChild) {
  run_with_memory(2, {}, [](int rank, const Memory& memory, Participant&) {
    std::byte* block = take(memory, 5_MiB);
    std::memset(block, 7, 5_MiB);
    if (rank != 0) return;
    const pid_t child = ::fork();
    if (child == 0) {
      memory->release(block);
      memory->~HostMemory();
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    EXPECT_TRUE(all_are(block, 5_MiB, std::byte{7}));
  });
}

TEST(ShmMemory, LeavesNoDescriptorOpen) {
  run_with_memory(2, {}, [](int, const Memory&, Participant&) {});
  const std::size_t before = open_descriptors();
  run_with_memory(4, {}, [](int, const Memory& memory, Participant&) { take(memory, 100); });
  EXPECT_EQ(open_descriptors(), before);
}

// ---- Setting up: error paths ----

int status_of(pid_t child) {
  int state = 0;
  ::waitpid(child, &state, 0);
  return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

std::size_t mapped_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(ShmMemory, IsNullOnAllRanksIfOneCannotMapIt) {
  for (const int poor : {0, 1}) {
    Participant participant(2);
    const pid_t child = ::fork();
    const int rank = child == 0 ? 1 : 0;
    // The poor rank has address space for its program, whatever a sanitizer has mapped for it, but not for the segment.
    struct rlimit before {};
    ::getrlimit(RLIMIT_AS, &before);
    const struct rlimit narrow { mapped_bytes() + 4096_MiB, before.rlim_max };
    if (rank == poor) ::setrlimit(RLIMIT_AS, &narrow);
    const auto memory = share_memory(participant.membership(rank, Deadline::after_seconds(20)));
    if (rank == poor) ::setrlimit(RLIMIT_AS, &before);
    const bool none = memory.ok() && *memory == nullptr;
    if (child == 0) ::_exit(none ? 0 : 1);
    EXPECT_TRUE(none) << (memory.ok() ? "there is memory" : memory.status().text());
    EXPECT_EQ(status_of(child), 0) << "poor rank " << poor;
  }
}

TEST(ShmMemory, NamesTheMissingRank) {
  Participant participant(3);
  run_ranks(2, [&](int rank) {
    const auto memory = share_memory(participant.membership(rank, Deadline::after_seconds(0.3)));
    ASSERT_FALSE(memory.ok());
    EXPECT_EQ(memory.status().code(), Code::timeout);
    EXPECT_THAT(memory.status().text(), HasSubstr("rank 12 (host-c) did not join"));
  });
}

// ---- Collectives ----

std::unique_ptr<Collectives> join(const Participant& participant, Membership membership, const Memory& memory) {
  (void)participant;
  membership.memory = memory;
  return require(make_shm_collectives(membership));
}

// Allocates blocks of the host's memory and releases them at the end of the scope.
class Blocks {
 public:
  explicit Blocks(Memory memory) : memory_(std::move(memory)) {}
  ~Blocks() {
    for (std::byte* block : blocks_) memory_->release(block);
  }
  std::byte* operator()(std::size_t bytes) { return blocks_.emplace_back(take(memory_, bytes)); }
  CaseOnRank::Memory allocator() {
    return [this](std::size_t bytes) { return (*this)(bytes); };
  }

 private:
  Memory memory_;
  std::vector<std::byte*> blocks_;
};

void check(Collectives& collectives, const Memory& memory, const CollectiveCase& c, int rank, int size) {
  Blocks blocks(memory);
  check(collectives, c, rank, size, memory ? blocks.allocator() : CaseOnRank::Memory());
}

using Work = std::function<void(int, const Memory&, Collectives&)>;

void run_group(int size, const Work& work) {
  run_with_memory(size, {{"memory_bytes", "512M"}}, [&](int rank, const Memory& memory, Participant& participant) {
    const auto collectives = join(participant, participant.membership(rank), memory);
    work(rank, memory, *collectives);
  });
}

class DirectRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Group, DirectRanks, testing::Values(2, 3, 4, 5), testing::PrintToStringParamName());

TEST_P(DirectRanks, ReduceEveryTypeWithEveryOperation) {
  const int size = GetParam();
  run_group(size, [&](int rank, const Memory& memory, Collectives& collectives) {
    CollectiveCase c;
    for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
      for (int op = 0; op < static_cast<int>(Op::user); ++op) {
        c.dtype = static_cast<Dtype>(dtype);
        c.reduction.op = static_cast<Op>(op);
        if (!supports(c.dtype, c.reduction.op)) continue;
        c.count = 40'011;
        c.in_place = !c.in_place;
        ++c.seed;
        check(collectives, memory, c, rank, size);
      }
    }
  });
}

TEST_P(DirectRanks, ReduceAndBroadcastEveryCount) {
  const int size = GetParam();
  run_group(size, [&](int rank, const Memory& memory, Collectives& collectives) {
    CollectiveCase c;
    for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::broadcast}) {
      c.collective = collective;
      for (const std::size_t count : {0, 3, 4096, 4097, 5000, 70'001, 300'000, 1'100'007}) {
        for (const bool in_place : {false, true}) {
          c.count = count;
          c.in_place = in_place;
          c.root = static_cast<int>(++c.seed) % size;
          check(collectives, memory, c, rank, size);
        }
      }
    }
  });
}

TEST_P(DirectRanks, MoveBlocksOfEverySize) {
  const int size = GetParam();
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  run_group(size, [&](int rank, const Memory& memory, Collectives& collectives) {
    std::mt19937_64 random(seed);
    CollectiveCase c;
    const auto some = [&](std::size_t most) { return random() % 4 == 0 ? 0 : random() % (most + 1); };
    for (int round = 0; round < 10; ++round) {
      const std::size_t most = round % 2 == 0 ? 5000 : 120'000;
      for (const Collective collective : {Collective::allgather, Collective::gather, Collective::scatter,
                                          Collective::reduce_scatter, Collective::alltoall}) {
        c.collective = collective;
        c.counts.assign(static_cast<std::size_t>(size), 0);
        c.exchanged.assign(c.counts.size(), c.counts);
        for (std::size_t i = 0; i < c.counts.size(); ++i) {
          c.counts[i] = some(most);
          for (std::size_t j = 0; j <= i; ++j) c.exchanged[i][j] = c.exchanged[j][i] = some(most);
        }
        if (collective == Collective::alltoall) c.counts.clear();
        for (const bool in_place : {false, true}) {
          c.in_place = in_place;
          c.root = static_cast<int>(random() % static_cast<uint64_t>(size));
          c.dtype = random() % 2 == 0 ? Dtype::float32 : Dtype::uint8;
          ++c.seed;
          check(collectives, memory, c, rank, size);
        }
      }
    }
  });
}

TEST_P(DirectRanks, ScaleBeforeAndAfter) {
  const int size = GetParam();
  run_group(size, [&](int rank, const Memory& memory, Collectives& collectives) {
    CollectiveCase c;
    for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
      for (const Dtype dtype : {Dtype::float32, Dtype::int32, Dtype::bfloat16, Dtype::uint8}) {
        c.collective = collective;
        c.dtype = dtype;
        c.count = 50'001;
        c.counts.assign(collective == Collective::reduce_scatter ? static_cast<std::size_t>(size) : 0, 40'001);
        c.in_place = !c.in_place;
        c.prescale = c.seed % 2 == 0 ? 1 : 0.3;
        c.postscale = 1.0 / size;
        ++c.seed;
        check(collectives, memory, c, rank, size);
      }
    }
  });
}

TEST_P(DirectRanks, MixWithRanksThatHaveOtherMemory) {
  const int size = GetParam();
  run_group(size, [&](int rank, const Memory& memory, Collectives& collectives) {
    std::mt19937_64 random(5);
    CollectiveCase c;
    for (int round = 0; round < 40; ++round) {
      const auto which = random();
      const bool shared = (which >> rank & 1) != 0;
      const auto kind = round % 6;
      c.collective = kind < 3    ? Collective::allreduce
                     : kind == 3 ? Collective::broadcast
                     : kind == 4 ? Collective::gather
                                 : Collective::reduce_scatter;
      c.count = kind < 4 ? 30'000 : 0;
      c.counts.assign(kind < 4 ? 0 : static_cast<std::size_t>(size), 20'000);
      c.root = round % size;
      c.in_place = round % 2 == 0;
      ++c.seed;
      check(collectives, shared ? memory : nullptr, c, rank, size);
    }
  });
}

// CollectiveCase does not cover input == output where the two have different sizes.
TEST(Direct, TakesInputEqualToOutputAsInPlace) {
  run_group(3, [](int rank, const Memory& memory, Collectives& collectives) {
    constexpr std::size_t kCount = 30'000;
    Blocks blocks(memory);
    auto* values = reinterpret_cast<int32_t*>(blocks(3 * kCount * sizeof(int32_t)));
    const std::vector<std::size_t> counts(3, kCount);
    std::fill_n(values + static_cast<std::size_t>(rank) * kCount, kCount, rank + 1);
    CollectiveSpec spec{.collective = Collective::allgather, .dtype = Dtype::int32, .counts = counts};
    require(call(collectives, spec, {values, values}));
    for (std::size_t i = 0; i < 3 * kCount; ++i) require(values[i] == static_cast<int32_t>(i / kCount) + 1, "gathered");
    for (std::size_t i = 0; i < 3 * kCount; ++i) values[i] = static_cast<int32_t>(i / kCount * 10) + rank;
    spec.collective = Collective::reduce_scatter;
    require(call(collectives, spec, {values, values}));
    for (std::size_t i = 0; i < kCount; ++i) require(values[i] == rank * 30 + 3, "summed up");
  });
}

// A user's operation that counts whether it is called in direct or staged operations.
struct CountingOp {
  std::atomic<Collectives*> collectives{nullptr};
  std::atomic<int> direct{0};
  std::atomic<int> staged{0};
  std::function<void()> also;
  UserOp op{[](const void* source, void* target, std::size_t count, int, void* context) {
              auto* self = static_cast<CountingOp*>(context);
              const bool is_direct =
                  self->collectives.load()->phase().find("memory that all ranks map") != std::string::npos;
              ++(is_direct ? self->direct : self->staged);
              if (self->also) self->also();
              for (std::size_t i = 0; i < count; ++i) {
                static_cast<float*>(target)[i] += static_cast<const float*>(source)[i];
              }
            },
            this};
};

TEST(Direct, IsUsedOnlyIfAllRanksBuffersAreShared) {
  for (const bool all : {true, false}) {
    run_group(3, [&](int rank, const Memory& memory, Collectives& collectives) {
      CountingOp counting;
      counting.collectives = &collectives;
      constexpr std::size_t kCount = 100'000;
      Blocks blocks(memory);
      std::vector<float> own(kCount, 1);
      float* values = own.data();
      if (all || rank != 2) {
        values = reinterpret_cast<float*>(blocks(kCount * sizeof(float)));
        std::fill_n(values, kCount, 1.0f);
      }
      const CollectiveSpec spec{.reduction = {Op::user, &counting.op}, .count = kCount};
      require(call(collectives, spec, {values, values}));
      require(all_are(reinterpret_cast<std::byte*>(values), 0, {}) && values[0] == 3 && values[kCount - 1] == 3,
              "sums");
      EXPECT_EQ(counting.direct > 0, all);
      EXPECT_EQ(counting.staged > 0, !all);
    });
  }
}

TEST(Direct, IsUsedInSubgroupsOfTheHostsRanks) {
  run_with_memory(4, {{"memory_bytes", "64M"}}, [](int rank, const Memory& memory, Participant& participant) {
    Membership membership = participant.membership(rank);
    membership.id += rank % 2 == 0 ? "/even" : "/odd";
    const std::vector<Member> everyone = membership.members;
    membership.members = {everyone[static_cast<std::size_t>(rank % 2)],
                          everyone[static_cast<std::size_t>(rank % 2 + 2)]};
    membership.rank = rank / 2;
    const auto collectives = join(participant, membership, memory);
    CountingOp counting;
    counting.collectives = collectives.get();
    Blocks blocks(memory);
    auto* values = reinterpret_cast<float*>(blocks(400'000));
    std::fill_n(values, 100'000, static_cast<float>(rank));
    const CollectiveSpec spec{.reduction = {Op::user, &counting.op}, .count = 100'000};
    require(call(*collectives, spec, {values, values}));
    require(values[99'999] == static_cast<float>(rank % 2 * 2 + 2), "the sum of the group");
    EXPECT_GT(counting.direct, 0);
  });
}

TEST(Direct, GivesTheSameBitsAsSteps) {
  run_group(3, [](int rank, const Memory& memory, Collectives& collectives) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::float64}) {
      CollectiveCase c{.dtype = dtype, .count = 90'001, .prescale = 0.7, .postscale = 1.0 / 3};
      Blocks blocks(memory);
      CaseOnRank staged(c, rank, 3), direct(c, rank, 3, blocks.allocator());
      require(call(collectives, staged.spec(), staged.buffers()));
      require(call(collectives, direct.spec(), direct.buffers()));
      require(same_bytes(staged.output(), direct.output()), "the same bits");
    }
  });
}

TEST(Direct, ReturnsOnNoRankBeforeAllAreDone) {
  run_group(2, [](int rank, const Memory& memory, Collectives& collectives) {
    Blocks blocks(memory);
    for (int round = 0; round < 200; ++round) {
      // Each rank overwrites the values as soon as its call returns, so a rank that reads late would see that.
      auto* values = reinterpret_cast<float*>(blocks(40'000));
      std::fill_n(values, 10'000, static_cast<float>(rank + round));
      CollectiveSpec spec{.collective = round % 2 == 0 ? Collective::broadcast : Collective::allreduce,
                          .count = 10'000};
      require(call(collectives, spec, {values, values}));
      const float expected = round % 2 == 0 ? static_cast<float>(round) : static_cast<float>(2 * round + 1);
      require(values[0] == expected && values[9'999] == expected, "round " + std::to_string(round));
      std::fill_n(values, 10'000, -1.0f);
    }
  });
}

// ---- Error paths ----

TEST(Direct, ReportsBothCallsWhenTwoRanksDiffer) {
  std::latch ended(2);
  run_group(2, [&](int rank, const Memory& memory, Collectives& collectives) {
    Blocks blocks(memory);
    std::byte* values = blocks(400'000);
    const CollectiveSpec spec{.count = rank == 0 ? 100'000u : 90'000u};
    const Status outcome = call(collectives, spec, {values, values});
    EXPECT_EQ(outcome.code(), Code::mismatch);
    EXPECT_THAT(outcome.text(), HasSubstr("allreduce of 100000"));
    EXPECT_THAT(outcome.text(), HasSubstr("allreduce of 90000"));
    ended.arrive_and_wait();
  });
}

TEST(Direct, NamesTheRankThatHasLeft) {
  run_group(3, [](int rank, const Memory& memory, Collectives& collectives) {
    if (rank == 2) return;
    Blocks blocks(memory);
    std::byte* values = blocks(400'000);
    const Status outcome = call(collectives, {.count = 100'000}, {values, values});
    EXPECT_EQ(outcome.code(), Code::peer_lost);
    EXPECT_EQ(outcome.error().culprit_rank, 12);
  });
}

void run_processes(int size, const std::map<std::string, std::string>& options, const Work& work) {
  Participant participant(size);
  participant.config() = config_with(options);
  test::run_processes(size, [&](int rank) {
    const Memory memory = join_memory(participant, rank);
    const auto collectives = join(participant, participant.membership(rank), memory);
    work(rank, memory, *collectives);
  });
}

TEST(Direct, RunsBetweenProcesses) {
  run_processes(3, {{"memory_bytes", "256M"}}, [](int rank, const Memory& memory, Collectives& collectives) {
    CollectiveCase c;
    for (const std::size_t count : {5'000, 70'001, 1'000'003}) {
      c.count = count;
      c.in_place = !c.in_place;
      ++c.seed;
      check(collectives, memory, c, rank, 3);
    }
    c.collective = Collective::allgather;
    c.counts = {20'000, 50'001, 3};
    check(collectives, memory, c, rank, 3);
  });
}

TEST(Direct, NamesTheRankKilledDuringACollective) {
  constexpr int kVictim = 1;
  struct Shared {
    std::atomic<int> folding;
    std::atomic<int64_t> killed_ns;
  };
  auto* shared = static_cast<Shared*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  run_processes(3, {}, [&](int rank, const Memory& memory, Collectives& collectives) {
    CountingOp counting;
    counting.collectives = &collectives;
    counting.also = [&] {
      if (counting.direct == 1) ++shared->folding;
      if (rank != kVictim || counting.direct < 5) return;
      while (shared->folding < 3) ::usleep(100);  // the others are in the collective, too
      shared->killed_ns = now_ns();
      ::kill(::getpid(), SIGKILL);
    };
    std::byte* values = take(memory, 4_MiB);
    const CollectiveSpec spec{.reduction = {Op::user, &counting.op}, .count = 1_MiB};
    const Status outcome = call(collectives, spec, {values, values});
    const double seconds = static_cast<double>(now_ns() - shared->killed_ns) / 1e9;
    EXPECT_EQ(outcome.code(), Code::peer_lost);
    EXPECT_EQ(outcome.error().culprit_rank, world_rank_of(kVictim));
    EXPECT_THAT(outcome.text(), HasSubstr("its process ended"));
    EXPECT_GT(counting.direct, 0);
    std::printf("rank %d noticed after %.2f ms\n", rank, seconds * 1e3);
  });
  ::munmap(shared, 4096);
}

// A rank is stopped in a collective and continues after the others have given it up. It must not write into memory that
// they use for other things by then.
TEST(Direct, ProtectsMemoryFromARankThatContinuesLate) {
  struct Shared {
    std::atomic<int> stopped_process;
    std::atomic<int> given_up;
  };
  auto* shared = static_cast<Shared*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  constexpr std::size_t kCount = 256'000;
  run_processes(2, {}, [&](int rank, const Memory& memory, Collectives& collectives) {
    CountingOp counting;
    counting.collectives = &collectives;
    auto* values = reinterpret_cast<float*>(take(memory, kCount * sizeof(float)));
    std::fill_n(values, kCount, 1.0f);
    if (rank == 1) {
      counting.also = [&] {
        if (shared->stopped_process.exchange(::getpid()) == 0) ::raise(SIGSTOP);
      };
      const CollectiveSpec spec{.reduction = {Op::user, &counting.op}, .count = kCount};
      // The other rank had done its share before it gave up, so this call may succeed. Later calls do not.
      (void)call(collectives, spec, {values, values});
      EXPECT_EQ(shared->given_up, 1) << "the rank was really stopped";
      EXPECT_EQ(call(collectives, {.collective = Collective::barrier}, {}).text(), "enough");
      return;
    }
    const CollectiveSpec spec{.reduction = {Op::user, &counting.op}, .count = kCount};
    Completion completion;
    collectives.start(spec, {values, values}, completion);
    int state = 0;
    while (shared->stopped_process == 0) collectives.progress();
    require(::waitpid(shared->stopped_process, &state, WUNTRACED) > 0 && WIFSTOPPED(state), "it has stopped");
    collectives.interrupt(Status(Code::timeout, "enough"));
    EXPECT_EQ(completion.status.text(), "enough");
    std::fill_n(values, kCount, 5.0f);  // the memory belongs to its owner again
    EXPECT_FALSE(memory->place_of(values, kCount * sizeof(float))) << "and is no longer shared";
    shared->given_up = 1;
    ::kill(shared->stopped_process, SIGCONT);
    siginfo_t info{};
    require(::waitid(P_PID, static_cast<id_t>(shared->stopped_process.load()), &info, WEXITED | WNOWAIT) == 0,
            "it ends");
    require(std::all_of(values, values + kCount, [](float value) { return value == 5.0f; }), "nothing was written");
    memory->release(values);
    std::byte* other = take(memory, kCount * sizeof(float));
    EXPECT_NE(static_cast<void*>(other), static_cast<void*>(values)) << "withdrawn memory is not reused";
  });
  ::munmap(shared, 4096);
}

}  // namespace
}  // namespace fdl
