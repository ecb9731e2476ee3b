// Tests of ordered collectives on devices with a late rank, or that never end: a warning names the late rank, and with
// a shutdown limit the communicator fails. Ranks are threads, on the fakes.
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "tests/fakes/device/own_device.h"
#include "tests/fakes/nccl/fake_nccl.h"

namespace world_test {
namespace {

constexpr std::size_t kCount = 300;

Knobs nccl_with(const Knobs& more) {
  Knobs knobs{{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}, {"suspect_after_s", "0.02"}};
  knobs.insert(knobs.end(), more.begin(), more.end());
  return knobs;
}

// A rank with a vector on its device. Each sum in place multiplies the values by the number of ranks.
class Summing {
 public:
  explicit Summing(World& me) : me_(me), device_(me.rank), memory_(device_.put(std::vector<int32_t>(kCount, 1))) {}

  // The host is done at once, except with the first one.
  fdl_result sum(fdl_request** request = nullptr) {
    fdl_call call = device_.message(FDL_RECV, memory_, kCount, 0);
    call.collective = FDL_ALLREDUCE;
    call.input = memory_;
    return fdl_call_ex(me_.comm, &call, nullptr, request);
  }
  // Waits for the stream only, as an application does that makes no further call.
  std::vector<int32_t> wait_for_the_device() { return device_.get(memory_, kCount); }
  static std::vector<int32_t> all(int32_t value) { return std::vector<int32_t>(kCount, value); }

 private:
  World& me_;
  OwnDevice device_;
  int32_t* memory_;
};

TEST(DeviceWatch, NamesALateRank) {
  Warnings warnings;
  run_ranks(3, nccl_with({{"stall_warning_s", "0.15"}}), [&](World& me) {
    Summing mine(me);
    FDL_ASSERT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(3));
    if (me.rank == 2) {
      warnings.wait_for({"communicator 'all comm 0': allreduce number 2 on cuda:", " has waited ", " s for rank 2 (",
                         "), which has begun 1 there: see what it does there"});
    }
    FDL_ASSERT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(9)) << "it was only a warning";
  });
}

TEST(DeviceWatch, NamesTwoLateRanks) {
  Warnings warnings;
  run_ranks(3, nccl_with({{"stall_warning_s", "0.15"}}), [&](World& me) {
    Summing mine(me);
    FDL_ASSERT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(3));
    if (me.rank != 0) {
      warnings.wait_for({" s for rank 1 (", "), which has begun 1 there; rank 2 (", "see what they do there"});
    }
    FDL_ASSERT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(9));
  });
}

TEST(DeviceWatch, ReportsThatAllRanksHaveBegunIfADeviceIsStuck) {
  Warnings warnings;
  std::barrier meet(2);
  run_ranks(2, nccl_with({{"stall_warning_s", "0.15"}}), [&](World& me) {
    Summing mine(me);
    FDL_ASSERT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(2));
    meet.arrive_and_wait();
    if (me.rank == 0) fake_cuda_hold();
    meet.arrive_and_wait();
    FDL_EXPECT_OK(mine.sum());
    if (me.rank == 0) {
      warnings.wait_for({"allreduce number 2 on cuda:", "and all ranks have begun it", "NCCL_DEBUG=WARN"});
      fake_cuda_go_on();
    }
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(4));
  });
}

// The host waits inside the call: in the first collective, and in every one that is staged.
TEST(DeviceWatch, NamesTheRankThatTheHostWaitsFor) {
  Warnings warnings;
  Knobs knobs = kStaged;
  knobs.insert(knobs.end(), {{"stall_warning_s", "0.15"}, {"suspect_after_s", "0.02"}});
  run_ranks(2, knobs, [&](World& me) {
    Summing mine(me);
    if (me.rank == 1) warnings.wait_for({"allreduce number 1 on cuda:0", " s for rank 1 (", "which has begun 0 there"});
    FDL_ASSERT_OK(mine.sum());
    if (me.rank == 1) warnings.wait_for({"allreduce number 2 on cuda:0", " s for rank 1 (", "which has begun 1 there"});
    FDL_ASSERT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(4));
  });
}

// A call that is refused on one rank is not counted, so that its numbers stay equal to those of the other ranks.
TEST(DeviceWatch, RefusedCallsDoNotCountAsBegun) {
  Warnings warnings;
  run_ranks(2, nccl_with({{"stall_warning_s", "0.15"}}), [&](World& me) {
    Summing mine(me);
    FDL_ASSERT_OK(mine.sum());
    if (me.rank == 1) {
      OwnDevice other(3);
      int32_t* memory = other.put({1});
      fdl_call call = other.message(FDL_RECV, memory, 1, 0);
      call.collective = FDL_ALLREDUCE;
      call.input = memory;
      EXPECT_EQ(fdl_call_ex(me.comm, &call, nullptr, nullptr), FDL_INVALID_ARGUMENT) << "another device";
      warnings.wait_for({"allreduce number 2 on cuda:0", " s for rank 1 (", "which has begun 1 there"});
    }
    FDL_ASSERT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(4));
  });
}

// ---- failures ----

void expect_error(fdl_result result, fdl_result as, int culprit, const std::vector<std::string>& words) {
  EXPECT_EQ(result, as) << fdl_last_error()->text;
  EXPECT_EQ(fdl_last_error()->culprit_rank, culprit);
  for (const std::string& each : words) {
    EXPECT_NE(std::string(fdl_last_error()->text).find(each), std::string::npos) << fdl_last_error()->text;
  }
}

TEST(DeviceWatch, ShutdownLimitEndsTheCommunicatorOnAllRanks) {
  std::barrier meet(3);
  run_ranks(3, nccl_with({{"stall_warning_s", "0"}, {"stall_shutdown_s", "0.8"}}), [&](World& me) {
    Summing mine(me);
    FDL_EXPECT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(3));
    meet.arrive_and_wait();
    if (me.rank != 2) {
      FDL_EXPECT_OK(mine.sum());
      mine.wait_for_the_device();  // the failure ends the work on the device
    }
    meet.arrive_and_wait();
    expect_error(mine.sum(), FDL_TIMEOUT, 2, {"allreduce number 2 on cuda:", " s for rank 2 (", "(stall_shutdown_s)"});
    float one = 1, sum = 0;
    fdl_comm* next = nullptr;
    FDL_EXPECT_OK(fdl_comm_create(me.all, &next));
    FDL_EXPECT_OK(fdl_allreduce(next, &one, &sum, 1, FDL_FLOAT32, FDL_SUM));
    EXPECT_EQ(sum, 3) << "other communicators stay usable";
    fdl_comm_destroy(next);
  });
}

TEST(DeviceWatch, ReportsALibraryErrorWithoutACallInProgress) {
  std::barrier meet(2);
  run_ranks(2, nccl_with({}), [&](World& me) {
    Summing mine(me);
    FDL_EXPECT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(2));
    meet.arrive_and_wait();
    if (me.rank == 0) {
      fake_nccl_set("error_at", 1);
      fake_cuda_hold();  // a call after the error, on either rank, would report it
    }
    meet.arrive_and_wait();
    FDL_EXPECT_OK(mine.sum());
    meet.arrive_and_wait();
    if (me.rank == 0) fake_cuda_go_on();
    mine.wait_for_the_device();
    const fdl_result result = mine.sum();
    const int culprit = fdl_last_error()->culprit_rank;
    EXPECT_TRUE(culprit == 0 || culprit == 1) << culprit;
    expect_error(result, FDL_TRANSPORT, culprit,
                 {"nccl: allreduce failed on rank " + std::to_string(culprit), "the network has failed"});
  });
  fake_nccl_reset();
}

// ---- cost ----

uint64_t wakeups(fdl_world* world) { return counters_of(world).wakeups; }

// Later work starts the watch again.
TEST(DeviceWatch, ProgressThreadSleepsOnceTheDeviceIsDone) {
  Warnings warnings;
  Knobs knobs = nccl_with({{"stall_warning_s", "0.15"}});
  for (auto& [knob, value] : knobs) {
    if (knob == "suspect_after_s") value = "0.005";
  }
  std::barrier meet(2);
  run_ranks(2, knobs, [&](World& me) {
    Summing mine(me);
    for (int i = 0; i < 10; ++i) FDL_EXPECT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(1 << 10));
    meet.arrive_and_wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // for the last check of the watch
    const uint64_t before = wakeups(me.world);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_LE(wakeups(me.world) - before, 6u) << "only fdl_metrics() may wake it";
    meet.arrive_and_wait();
    if (me.rank == 1)
      warnings.wait_for({"allreduce number 11 on cuda:", " s for rank 1 (", "which has begun 10 there"});
    FDL_EXPECT_OK(mine.sum());
    EXPECT_EQ(mine.wait_for_the_device(), mine.all(1 << 11));
  });
}

// Calls and checks run concurrently, so that a thread sanitizer can find races.
TEST(DeviceWatch, ChecksWhileAnotherThreadCalls) {
  Warnings warnings;
  Knobs knobs = nccl_with({{"stall_warning_s", "0.01"}});
  for (auto& [knob, value] : knobs) {
    if (knob == "suspect_after_s") value = "0.001";
  }
  run_ranks(3, knobs, [&](World& me) {
    Summing mine(me);
    for (int round = 0; round < 10; ++round) {
      std::vector<fdl_request*> requests(10);
      for (fdl_request*& each : requests) FDL_ASSERT_OK(mine.sum(&each));
      FDL_ASSERT_OK(fdl_wait_all(requests.data(), requests.size()));
      mine.wait_for_the_device();
    }
    fdl_barrier(me.comm);
  });
}

}  // namespace
}  // namespace world_test
