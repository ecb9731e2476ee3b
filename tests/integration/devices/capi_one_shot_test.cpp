// Tests of small sums by one-shot kernels through the C API: which sums they take, that all ranks agree on them, and
// their end. Ranks are threads, on the fakes.
#include <barrier>
#include <mutex>

#include "tests/fakes/device/own_device.h"
#include "tests/fakes/nccl/fake_nccl.h"

namespace world_test {
namespace {

constexpr std::size_t kCount = 300;

Knobs one_shot(const Knobs& more = {}, const char* bytes = "4096") {
  Knobs knobs{{"cuda_library", FDL_FAKE_CUDA},
              {"nccl_library", FDL_FAKE_NCCL},
              {"suspect_after_s", "5"},  // a rank that ends waits so long for the kernels of the others
              {"one_shot_bytes", bytes}};
  knobs.insert(knobs.end(), more.begin(), more.end());
  return knobs;
}

class OneShotSums : public testing::Test {
 protected:
  void SetUp() override { fake_nccl_reset(); }
  void TearDown() override {
    fake_cuda_clear_failures();
    EXPECT_EQ(fake_nccl_count("communicators"), 0);
    EXPECT_EQ(fake_cuda_pinned_bytes(), 0u);
  }
};

// A rank with a vector on its device.
struct Summing {
  explicit Summing(World& world, std::size_t most = kCount)
      : me(world), device(world.rank), memory(device.put(std::vector<int32_t>(most, 1))) {}
  ~Summing() { device.synchronize(); }

  fdl_call call(std::size_t count, void* stream) {
    fdl_call made = device.message(FDL_RECV, memory, count, 0);
    made.collective = FDL_ALLREDUCE;
    made.input = memory;
    made.stream = stream;
    return made;
  }
  fdl_result sum(std::size_t count = kCount) {
    const fdl_call made = call(count, device.stream());
    return fdl_call_ex(me.comm, &made, nullptr, nullptr);
  }
  void expect(int32_t value, std::size_t count = kCount) {
    EXPECT_EQ(device.get(memory, count), std::vector<int32_t>(count, value));
  }

  World& me;
  OwnDevice device;
  int32_t* memory;
};

TEST_F(OneShotSums, TakeSmallSumsAndLeaveLargeOnesToNccl) {
  std::barrier all(4);
  run_ranks(4, one_shot(), [&](World& me) {
    Summing mine(me, 2000);
    for (int32_t value = 4; value <= 256; value *= 4) {
      FDL_ASSERT_OK(mine.sum());
      mine.expect(value);
    }
    FDL_ASSERT_OK(mine.sum(1024));
    mine.expect(1024, kCount);
    EXPECT_EQ(fake_nccl_calls("AllReduce"), 0) << "4096 bytes are the limit";
    all.arrive_and_wait();
    FDL_ASSERT_OK(mine.sum(1025));
    mine.expect(4096, kCount);
  });
  EXPECT_EQ(fake_nccl_calls("AllReduce"), 4);
}

TEST_F(OneShotSums, AreOffUnlessTheyAreWanted) {
  run_ranks(2, one_shot({}, "0"), [](World& me) {
    Summing mine(me);
    FDL_ASSERT_OK(mine.sum());
    mine.expect(2);
  });
  EXPECT_EQ(fake_nccl_calls("AllReduce"), 2);
}

TEST_F(OneShotSums, WorkWithoutNccl) {
  run_ranks(3, one_shot({{"device_collectives", "staged"}}), [](World& me) {
    Summing mine(me, 2000);
    FDL_ASSERT_OK(mine.sum());
    mine.expect(3);
    FDL_ASSERT_OK(mine.sum(2000));
    mine.expect(9);
  });
}

TEST_F(OneShotSums, OfNamedOperationsToo) {
  run_ranks(3, one_shot(), [](World& me) {
    Summing mine(me);
    constexpr int64_t kShape = kCount;
    for (int32_t value = 3; value <= 81; value *= 3) {
      fdl_operation operation;
      fdl_operation_init(&operation);
      operation.name = "gradient";
      operation.input = mine.device.tensor(mine.memory, FDL_INT32, &kShape);
      operation.output = mine.memory;
      FDL_ASSERT_OK(fdl_run(me.all, &operation, 1, -1, nullptr));
      mine.expect(value);
    }
  });
  EXPECT_EQ(fake_nccl_calls("AllReduce"), 0);
}

// The kernels of one group run in the order of the calls, whatever their streams.
TEST_F(OneShotSums, OnSeveralStreamsRunInTheOrderOfTheCalls) {
  run_ranks(2, one_shot(), [](World& me) {
    Summing mine(me);
    void* const other = mine.device.device().make_stream().take();
    int32_t* const much = mine.device.put(std::vector<int32_t>(2, 0));
    fdl_call first = mine.call(kCount, mine.device.stream());
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &first, nullptr, nullptr));
    mine.expect(2);
    for (int repeat = 0; repeat < 10; ++repeat) {
      // One rank's first stream is behind, so that its second kernel would run before its first one.
      if (me.rank == 0) mine.device.queue_much(much);
      for (void* stream : {mine.device.stream(), other}) {
        int32_t* const vector = stream == other ? mine.memory : much;
        fdl_call call = mine.call(stream == other ? kCount : 1, stream);
        call.input = call.output = vector;
        FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));
      }
    }
    mine.device.synchronize(other);
    mine.expect(1 << 11);
    mine.device.device().end_stream(other);
  });
}

// If one rank lacks something, all use NCCL.
TEST_F(OneShotSums, AreDoneByNcclIfOneRankCannot) {
  for (const char* call : {"cuIpcGetMemHandle", "cuMemsetD8Async", "cuCtxEnablePeerAccess"}) {
    fake_nccl_reset();
    fake_cuda_fail(call, 1, 801);
    run_ranks(3, one_shot(), [](World& me) {
      Summing mine(me);
      FDL_ASSERT_OK(mine.sum());
      mine.expect(3);
      FDL_ASSERT_OK(mine.sum());
      mine.expect(9);
    });
    EXPECT_EQ(fake_nccl_calls("AllReduce"), 6) << call;
    fake_cuda_clear_failures();
  }
}

TEST_F(OneShotSums, AWaitForALateRankIsReportedAndTheLimitEndsIt) {
  std::barrier both(2);
  run_ranks(
      2, one_shot({{"suspect_after_s", "0.5"}, {"stall_warning_s", "0"}, {"stall_shutdown_s", "0.6"}}), [&](World& me) {
        Summing mine(me);
        FDL_ASSERT_OK(mine.sum());
        mine.expect(2);
        both.arrive_and_wait();  // a device that still computes the first sum is waited for, and not its rank
        if (me.rank == 0) {
          FDL_EXPECT_OK(mine.sum());
          mine.device.synchronize();  // ends when the kernel is stopped
          EXPECT_EQ(mine.sum(), FDL_TIMEOUT) << fdl_last_error()->text;
          EXPECT_NE(std::string(fdl_last_error()->text).find("rank 1"), std::string::npos) << fdl_last_error()->text;
        }
        both.arrive_and_wait();
      });
}

// A rank that ends its communicator early must not take its memory from the kernels of the others.
TEST_F(OneShotSums, OfASlowRankEndAfterTheOthersHaveLeft) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    run_ranks(3, one_shot(), [](World& me) {
      Summing mine(me);
      FDL_ASSERT_OK(mine.sum());
      mine.expect(3);
      if (me.rank == 2) mine.device.queue_much(mine.device.put(std::vector<int32_t>(2, 0)));
      FDL_ASSERT_OK(mine.sum());
      fdl_comm_destroy(std::exchange(me.comm, nullptr));
      mine.expect(9);
    });
  }
}

TEST_F(OneShotSums, AllRanksMustHaveTheSameLimit) {
  const std::string name = fresh_name();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      World world;
      EXPECT_NE(open_world(name, rank, 2, one_shot({}, rank == 0 ? "4096" : "8192"), world), FDL_OK);
      EXPECT_NE(std::string(fdl_last_error()->text).find("one_shot_bytes"), std::string::npos)
          << fdl_last_error()->text;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace world_test
