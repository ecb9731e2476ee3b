// Tests of fdl_device_alloc: device memory for a group's tensors, registered with NCCL. Ranks are threads, on the
// fakes.
#include <gmock/gmock.h>

#include <bit>
#include <cstdlib>
#include <functional>
#include <memory>

#include "cuda/cuda_device.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/device/synchronize_stream.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/support/worlds.h"

namespace world_test {
namespace {

using testing::HasSubstr;

// Set before the driver is opened for the first time.
const bool kSixDevices = ::setenv("FAKE_CUDA_DEVICES", "6", 1) == 0;

const Knobs kNccl{{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}};
Knobs with(std::string name, std::string value) {
  Knobs knobs = kNccl;
  knobs.emplace_back(std::move(name), std::move(value));
  return knobs;
}
const Knobs kStaged = with("device_collectives", "staged");

constexpr std::size_t kCount = 3000;

// A rank's device, used as an application uses it.
class Gpu {
 public:
  explicit Gpu(const World& me) : me_(me) {
    auto config = fdl::Config::read(fdl::Environment({}), {{"cuda_library", FDL_FAKE_CUDA}});
    device_ = fdl::open_cuda_device(me.rank, *config).take();
    stream_ = device_->make_stream().take();
  }
  ~Gpu() {
    for (void* memory : symmetric_) fdl_free(memory);
    for (void* memory : own_) device_->release(memory);
    synchronize();
    device_->end_stream(stream_);
  }

  fdl_result take(std::size_t count, int32_t** memory) {
    void* taken = nullptr;
    const fdl_result result = fdl_device_alloc(me_.all, FDL_DEVICE_CUDA, me_.rank, stream_, count * 4, &taken);
    *memory = static_cast<int32_t*>(taken);
    return result;
  }
  int32_t* take(std::size_t count = kCount) {
    int32_t* memory = nullptr;
    EXPECT_EQ(take(count, &memory), FDL_OK) << fdl_last_error()->text;
    symmetric_.push_back(memory);
    return memory;
  }
  void free(int32_t* memory) {
    std::erase(symmetric_, memory);
    fdl_free(memory);
  }
  int32_t* own(std::size_t count = kCount) {
    own_.push_back(device_->allocate(count * 4).take());
    return static_cast<int32_t*>(own_.back());
  }
  void fill(int32_t* memory, std::size_t count, int32_t value) {
    synchronize();
    const std::vector<int32_t> values(count, value);
    fake_cuda_write(memory, values.data(), count * 4);
  }
  std::vector<int32_t> get(const int32_t* memory, std::size_t count) {
    synchronize();
    std::vector<int32_t> values(count);
    fake_cuda_read(memory, values.data(), count * 4);
    return values;
  }
  // Waits until all work on the stream has run.
  void synchronize() { synchronize_stream(*device_, stream_, notifier_); }

  fdl_operation sum(const char* name, int32_t* memory, const int64_t* count) const {
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.name = name;
    operation.input = {memory, FDL_INT32, 1, count, FDL_DEVICE_CUDA, me_.rank, stream_};
    operation.output = memory;
    return operation;
  }
  // Submits the sums together, so that they are fused.
  void sum_in_group(const std::vector<std::pair<int32_t*, int64_t>>& tensors, double prescale = 1) {
    static constexpr const char* kNames[] = {"a", "b", "c", "d"};
    std::vector<fdl_operation> operations;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      operations.push_back(sum(kNames[i], tensors[i].first, &tensors[i].second));
      operations.back().prescale = prescale;
    }
    FDL_EXPECT_OK(fdl_run(me_.all, operations.data(), operations.size(), -1, nullptr));
  }
  fdl::Device& device() { return *device_; }
  void* stream() { return stream_; }

 private:
  const World& me_;
  fdl::Event notifier_ = fdl::Event::make().take();  // outlives the stream
  std::shared_ptr<fdl::Device> device_;
  fdl::Stream stream_ = nullptr;
  std::vector<int32_t*> symmetric_;
  std::vector<void*> own_;
};

std::vector<int32_t> all(std::size_t count, int32_t value) { return std::vector<int32_t>(count, value); }
int32_t sum_of_ranks(int size) { return size * (size + 1) / 2; }

class DeviceMemory : public testing::Test {
 protected:
  void SetUp() override { fake_nccl_reset(); }
  void TearDown() override {
    EXPECT_EQ(fake_nccl_count("windows"), 0);
    EXPECT_EQ(fake_nccl_count("registrations"), 0);
    EXPECT_EQ(fake_nccl_count("memory"), 0) << "allocations of NCCL";
    fake_nccl_reset();
  }
};

// The driver calls with which tensors are packed and unpacked.
std::size_t packings() { return fake_cuda_calls("cuMemcpyAsync") + fake_cuda_calls("cuLaunchKernel"); }

// Counts what all ranks do during `work`. Barriers keep other work out of the count.
std::size_t while_all(World& me, const std::function<std::size_t()>& count, const std::function<void()>& work) {
  EXPECT_EQ(fdl_barrier(me.comm), FDL_OK);
  const std::size_t before = count();
  EXPECT_EQ(fdl_barrier(me.comm), FDL_OK);
  work();
  EXPECT_EQ(fdl_barrier(me.comm), FDL_OK);
  const std::size_t after = count();
  EXPECT_EQ(fdl_barrier(me.comm), FDL_OK);
  return after - before;
}

TEST_F(DeviceMemory, IsZeroedAndRegisteredAsAWindowOnAllRanks) {
  run_ranks(3, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* memory = gpu.take();
    EXPECT_EQ(gpu.get(memory, kCount), all(kCount, 0));
    gpu.fill(memory, kCount, me.rank + 1);
    gpu.sum_in_group({{memory, kCount}});
    EXPECT_EQ(gpu.get(memory, kCount), all(kCount, sum_of_ranks(3)));
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    EXPECT_EQ(fake_nccl_count("windows"), 3);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

TEST_F(DeviceMemory, AdjacentSumsAreNeitherPackedNorUnpacked) {
  for (const bool by_nccl : {true, false}) {
    run_ranks(2, by_nccl ? kNccl : kStaged, [by_nccl](World& me) {
      Gpu gpu(me);
      int32_t* memory = gpu.take();
      gpu.fill(memory, kCount, me.rank + 1);
      const std::size_t staged = while_all(me, packings, [&] { gpu.sum_in_group({{memory, kCount}}); });
      gpu.fill(memory, kCount, me.rank + 1);
      const std::size_t beside = while_all(me, packings, [&] {
        gpu.sum_in_group({{memory, 100}, {memory + 100, 1}, {memory + 101, kCount - 101}});
      });
      EXPECT_EQ(beside, staged) << "no more than for a single tensor";
      if (by_nccl) {
        EXPECT_EQ(beside, 0u);
      }
      EXPECT_EQ(gpu.get(memory, kCount), all(kCount, 3));
      // In another order, or with a gap, they are packed.
      for (const auto& [first, second] : {std::pair{100, 0}, std::pair{0, 101}}) {
        gpu.fill(memory, kCount, me.rank + 1);
        const std::size_t apart = while_all(me, packings, [&] {
          gpu.sum_in_group({{memory + first, 100}, {memory + second, 100}});
        });
        EXPECT_GT(apart, staged);
        EXPECT_EQ(gpu.get(memory + first, 100), all(100, 3));
        EXPECT_EQ(gpu.get(memory + second, 100), all(100, 3));
      }
    });
  }
}

// If only some ranks applied a factor while packing, the sum would be wrong. If only some ranks passed a window to
// NCCL, the fake would refuse it.
// NCCL 2.32.3 has no kernel for its own average of floats in windows.
TEST_F(DeviceMemory, AveragesOfFloatsInPlace) {
  for (const int size : {2, 3, 4}) {
    run_ranks(size, kNccl, [size](World& me) {
      Gpu gpu(me);
      int32_t* memory = gpu.take();
      const int64_t count = kCount;
      fdl_operation average = gpu.sum("average", memory, &count);
      average.input.dtype = FDL_FLOAT32;
      average.op = FDL_AVERAGE;
      for (int step = 0; step < 3; ++step) {
        gpu.fill(memory, kCount, std::bit_cast<int32_t>(6.0F * static_cast<float>(me.rank + 1 + step)));
        FDL_EXPECT_OK(fdl_run(me.all, &average, 1, -1, nullptr));
        const float expected = 3.0F * static_cast<float>(size + 1 + 2 * step);
        EXPECT_EQ(gpu.get(memory, kCount), all(kCount, std::bit_cast<int32_t>(expected)));
      }
    });
  }
}

TEST_F(DeviceMemory, AllRanksPackSumsThatLieDifferently) {
  run_ranks(3, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* memory = gpu.take();
    int32_t* other = gpu.take();
    int32_t* own = gpu.own();
    int32_t* const choices[][3] = {
        {memory, memory, own}, {memory, memory + 8, memory}, {memory, other, memory}, {own, own, own}};
    for (const auto& choice : choices) {
      int32_t* mine = choice[me.rank];
      for (const double prescale : {1.0, 2.0}) {
        gpu.fill(mine, 200, me.rank + 1);
        gpu.sum_in_group({{mine, 200}}, prescale);
        EXPECT_EQ(gpu.get(mine, 200), all(200, 6 * static_cast<int32_t>(prescale)));
        gpu.fill(mine, 200, me.rank + 1);
        gpu.sum_in_group({{mine, 50}, {mine + 50, 150}}, prescale);
        EXPECT_EQ(gpu.get(mine, 200), all(200, 6 * static_cast<int32_t>(prescale)));
      }
    }
  });
}

TEST_F(DeviceMemory, JoinedRankContributesZerosToSumsInSymmetricMemory) {
  run_ranks(3, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* memory = gpu.take();
    gpu.fill(memory, kCount, me.rank + 1);
    gpu.sum_in_group({{memory, kCount}});
    EXPECT_EQ(gpu.get(memory, 1), all(1, 6));
    if (me.rank < 2) {
      gpu.fill(memory, kCount, 1);
      gpu.sum_in_group({{memory, kCount}});
      EXPECT_EQ(gpu.get(memory, kCount), all(kCount, 2));
      gpu.sum_in_group({{memory, 100}, {memory + 100, 100}});
      EXPECT_EQ(gpu.get(memory, 201), [] {
        std::vector<int32_t> expected = all(200, 4);
        expected.push_back(2);
        return expected;
      }());
    }
    fdl_handle* joined = nullptr;
    FDL_ASSERT_OK(fdl_join(me.all, &joined));
    FDL_EXPECT_OK(fdl_wait_handle(joined, -1));
    fdl_handle_free(joined);
    EXPECT_EQ(gpu.get(memory, 1), all(1, me.rank < 2 ? 4 : 6)) << "a joined rank's memory is unchanged";
  });
}

TEST_F(DeviceMemory, BroadcastFromDifferentPlacesIsAMismatchThatNamesBoth) {
  run_ranks(2, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* memory = gpu.take();
    int32_t* own = gpu.own();
    const int64_t count = 10;
    for (const bool alike : {false, true}) {
      fdl_operation operation = gpu.sum("b", me.rank == 0 || alike ? memory : own, &count);
      operation.kind = FDL_NAMED_BROADCAST;
      const fdl_result result = fdl_run(me.all, &operation, 1, -1, nullptr);
      EXPECT_EQ(result, alike ? FDL_OK : FDL_MISMATCH);
      if (alike) continue;
      EXPECT_THAT(fdl_last_error()->text, HasSubstr("rank 0"));
      EXPECT_THAT(fdl_last_error()->text, HasSubstr("rank 1"));
      EXPECT_THAT(fdl_last_error()->text, HasSubstr("fdl_device_alloc"));
    }
  });
}

// A repeated order of such tensors is locked, and is left when a tensor has moved.
TEST_F(DeviceMemory, LocksAnOrderAndLeavesItWhenATensorMoves) {
  run_ranks(2, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* memory = gpu.take();
    for (int step = 0; step < 60; ++step) {
      int32_t* mine = memory + (step > 40 ? 16 : 0) + (step > 50 ? 16 * me.rank : 0);
      gpu.fill(mine, 200, me.rank + step);
      gpu.sum_in_group({{mine, 100}, {mine + 100, 100}});
      ASSERT_EQ(gpu.get(mine, 200), all(200, 2 * step + 1)) << step;
    }
    fdl_counters counters{.struct_size = sizeof counters};
    FDL_EXPECT_OK(fdl_metrics(me.world, &counters));
    EXPECT_GT(counters.locked_steps, 10u);
  });
}

// ---- Freeing ----

TEST_F(DeviceMemory, NextAllocationReturnsMemoryThatAllRanksHaveFreed) {
  run_ranks(2, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* first = gpu.take();
    gpu.sum_in_group({{first, kCount}});
    if (me.rank == 0) gpu.free(first);
    int32_t* second = gpu.take();  // rank 1 still has the first
    gpu.sum_in_group({{second, kCount}});
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    EXPECT_EQ(fake_nccl_count("windows"), 4);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    if (me.rank == 1) gpu.free(first);
    gpu.synchronize();
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    int32_t* third = gpu.take();
    gpu.sum_in_group({{third, kCount}, {second, 10}});
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    EXPECT_EQ(fake_nccl_count("windows"), 2 * 3) << "the second, the third and the fusion buffer";
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

// The fake ends the process if memory is freed while work still uses it.
TEST_F(DeviceMemory, MayBeFreedWhileNcclStillUsesIt) {
  run_ranks(2, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* memory = gpu.take();
    gpu.sum_in_group({{memory, kCount}});
    gpu.synchronize();
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    if (me.rank == 0) fake_nccl_set("delay_us", 20'000);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    gpu.sum_in_group({{memory, kCount}});
    gpu.free(memory);
    int32_t* next = gpu.take();
    gpu.sum_in_group({{next, kCount}});
    gpu.synchronize();
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    gpu.take();
    gpu.sum_in_group({{next, kCount}});
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    EXPECT_EQ(fake_nccl_count("windows"), 4) << "memory that was still in use has been returned now";
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

TEST_F(DeviceMemory, OutlivesItsWorldAndCanBeFreedAfterwards) {
  int32_t* kept[2] = {};
  std::unique_ptr<Gpu> gpus[2];
  World none[2];
  for (int rank = 0; rank < 2; ++rank) none[rank].rank = rank;
  for (int rank = 0; rank < 2; ++rank) gpus[rank] = std::make_unique<Gpu>(none[rank]);
  run_ranks(2, kNccl, [&](World& me) {
    none[me.rank].all = me.all;
    Gpu& gpu = *gpus[me.rank];
    kept[me.rank] = gpu.take();
    gpu.fill(kept[me.rank], kCount, me.rank + 1);
    gpu.sum_in_group({{kept[me.rank], kCount}});
    gpu.synchronize();
    none[me.rank].all = nullptr;
  });
  EXPECT_EQ(fake_nccl_count("windows"), 0) << "the end of the communicator deregisters them";
  EXPECT_EQ(fake_nccl_count("memory"), 2) << "the callers still hold the memory";
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(gpus[rank]->get(kept[rank], kCount), all(kCount, 3));
  for (int rank = 0; rank < 2; ++rank) gpus[rank]->free(kept[rank]);
  EXPECT_EQ(fake_nccl_count("memory"), 0);
}

// ---- fallbacks and failures ----

TEST_F(DeviceMemory, IsOrdinaryDeviceMemoryWithoutNcclOrInAGroupOfOne) {
  for (const auto& [size, knobs] : {std::pair{2, kStaged}, std::pair{1, kNccl}}) {
    run_ranks(size, knobs, [size = size](World& me) {
      Gpu gpu(me);
      int32_t* memory = gpu.take();
      EXPECT_EQ(gpu.get(memory, kCount), all(kCount, 0));
      gpu.fill(memory, kCount, me.rank + 1);
      gpu.sum_in_group({{memory, 10}, {memory + 10, kCount - 10}});
      EXPECT_EQ(gpu.get(memory, kCount), all(kCount, sum_of_ranks(size)));
      gpu.free(memory);
      gpu.take();
    });
    EXPECT_EQ(fake_nccl_calls("MemAlloc"), 0);
  }
}

TEST_F(DeviceMemory, IsOrdinaryOnAllRanksIfNcclHasNoneForOneRank) {
  fake_nccl_fail("MemAlloc", 1, 1);
  run_ranks(3, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* memory = gpu.take();
    gpu.fill(memory, kCount, me.rank + 1);
    gpu.sum_in_group({{memory, 10}, {memory + 10, kCount - 10}});
    EXPECT_EQ(gpu.get(memory, kCount), all(kCount, 6));
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    EXPECT_EQ(fake_nccl_count("windows"), 0);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

TEST_F(DeviceMemory, AllRanksNameTheRankWithoutMemoryAndTheGroupStaysUsable) {
  run_ranks(3, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* first = gpu.take();
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    if (me.rank == 1) {
      fake_nccl_fail("MemAlloc", 1, 1);
      fake_nccl_fail("MemAlloc", 2, 1);
      fake_nccl_fail("MemAlloc", 3, 1);
      fake_cuda_memory(1 << 16);
    }
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    int32_t* second = nullptr;
    EXPECT_EQ(gpu.take(1 << 20, &second), FDL_RESOURCE);
    EXPECT_EQ(second, nullptr);
    EXPECT_THAT(fdl_last_error()->text, HasSubstr("rank 0"));
    EXPECT_THAT(fdl_last_error()->text, HasSubstr("has no memory for the group"));
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    if (me.rank == 1) fake_cuda_memory(std::size_t{8} << 30);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    gpu.take();
    gpu.fill(first, kCount, me.rank + 1);
    gpu.sum_in_group({{first, kCount}});
    EXPECT_EQ(gpu.get(first, kCount), all(kCount, 6));
  });
}

TEST_F(DeviceMemory, UnequalSizesAreAMismatchThatNamesBoth) {
  run_ranks(2, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* memory = nullptr;
    EXPECT_EQ(gpu.take(100 + static_cast<std::size_t>(me.rank), &memory), FDL_MISMATCH);
    EXPECT_THAT(fdl_last_error()->text, HasSubstr("rank 0"));
    EXPECT_THAT(fdl_last_error()->text, HasSubstr("rank 1"));
    gpu.take();
  });
}

TEST_F(DeviceMemory, RankWithoutItsDeviceDoesNotBlockTheOthers) {
  run_ranks(2, kNccl, [](World& me) {
    void* memory = nullptr;
    const int index = me.rank == 0 ? 0 : 77;
    EXPECT_EQ(fdl_device_alloc(me.all, FDL_DEVICE_CUDA, index, nullptr, 100, &memory),
              me.rank == 0 ? FDL_MISMATCH : FDL_INVALID_ARGUMENT);
    EXPECT_THAT(fdl_last_error()->text, HasSubstr(me.rank == 0 ? "rank 1" : "77"));
    EXPECT_EQ(fdl_device_alloc(me.all, FDL_DEVICE_CUDA, 77, nullptr, 100, &memory), FDL_INVALID_ARGUMENT);
  });
}

TEST_F(DeviceMemory, RefusesInvalidArgumentsAtOnce) {
  run_ranks(1, kNccl, [](World& me) {
    void* memory = nullptr;
    EXPECT_EQ(fdl_device_alloc(me.all, FDL_DEVICE_CUDA, 0, nullptr, 100, nullptr), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_device_alloc(me.all, FDL_DEVICE_CUDA, 0, nullptr, 0, &memory), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_device_alloc(me.all, FDL_DEVICE_CPU, 0, nullptr, 100, &memory), FDL_INVALID_ARGUMENT);
    EXPECT_THAT(fdl_last_error()->text, HasSubstr("fdl_alloc"));
    EXPECT_EQ(fdl_device_alloc(me.all, FDL_DEVICE_CUDA, -1, nullptr, 100, &memory), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_device_alloc(nullptr, FDL_DEVICE_CUDA, 0, nullptr, 100, &memory), FDL_NOT_INITIALIZED);
  });
}

TEST_F(DeviceMemory, OlderNcclVersionsRegisterItOrUseItUnregistered) {
  for (const auto& [version, registrations] : {std::pair{22300L, 2L}, std::pair{21800L, 0L}}) {
    fake_nccl_set("version", version);
    run_ranks(2, kNccl, [registrations = registrations](World& me) {
      Gpu gpu(me);
      int32_t* memory = gpu.take();
      gpu.fill(memory, kCount, me.rank + 1);
      gpu.sum_in_group({{memory, 10}, {memory + 10, kCount - 10}});
      EXPECT_EQ(gpu.get(memory, kCount), all(kCount, 3));
      FDL_EXPECT_OK(fdl_barrier(me.comm));
      EXPECT_EQ(fake_nccl_count("registrations"), registrations);
      FDL_EXPECT_OK(fdl_barrier(me.comm));
    });
  }
}

TEST_F(DeviceMemory, LostRankEndsTheGroupButNotTheMemory) {
  run_ranks(2, kNccl, [](World& me) {
    Gpu gpu(me);
    int32_t* memory = gpu.take();
    gpu.fill(memory, kCount, 5);
    if (me.rank == 1) return;
    int32_t* second = nullptr;
    EXPECT_NE(gpu.take(kCount, &second), FDL_OK);
    EXPECT_THAT(fdl_last_error()->text, HasSubstr("rank 1"));
    EXPECT_EQ(gpu.get(memory, kCount), all(kCount, 5));
  });
}

}  // namespace
}  // namespace world_test
