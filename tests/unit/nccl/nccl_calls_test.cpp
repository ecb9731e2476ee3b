// These tests cover nccl_calls=auto: which calls are made by the communicator's thread, and its end while they wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/nccl_fixture.h"
#include "transports/nccl/nccl_known_calls.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

class NcclCallsAuto : public Nccl {
 protected:
  void SetUp() override {
    Nccl::SetUp();
    fake_nccl_set("connects", 1);
  }
};

bool is_done_at_once(GpuRank& me, float* memory, std::size_t count, Completion& completion) {
  me.collectives->start(me.on_stream({.count = count}), {memory, memory}, completion);
  return completion.done;
}

// The others are late to the first sum. Until they come, the thread that drives is free.
TEST_F(NcclCallsAuto, WaitForLateRanksInAThread) {
  std::atomic<bool> started{false};
  run_gpu_group(3, [&](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 1));
    if (me.rank == 0) {
      Completion completion;
      EXPECT_FALSE(is_done_at_once(me, memory, 10, completion));
      drive_until(
          *me.collectives, [&] { return me.collectives->phase() == "nccl allreduce, step 1 of 1"; }, "it has begun");
      EXPECT_FALSE(completion.done);
      started = true;
      require(wait(*me.collectives, completion));
    } else {
      const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
      while (!started) require(!deadline.passed(), "rank 0 does not start");
      require(me.sum(memory, memory, 10));
    }
    me.gpu.synchronize();
    EXPECT_EQ(me.gpu.get(memory, 10), std::vector<float>(10, 3));
  });
}

TEST_F(NcclCallsAuto, QueueKnownCallsAtOnce) {
  run_gpu_group(2, [](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 1));
    require(me.sum(memory, memory, 10));
    for (int i = 0; i < 5; ++i) {
      Completion completion;
      EXPECT_TRUE(is_done_at_once(me, memory, 10, completion));
      require(completion.status);
    }
    me.gpu.synchronize();
    EXPECT_EQ(me.gpu.get(memory, 10), std::vector<float>(10, 64));
  });
}

TEST_F(NcclCallsAuto, AreKnownBySizesThatDifferByLessThanAQuarter) {
  const auto key_of = [](uint64_t size) { return NcclKnownCalls::Key().add_size(size).value(); };
  for (uint64_t size = 1; size < (uint64_t{1} << 40); size = 2 * size + 1) {
    EXPECT_NE(key_of(size), key_of(size + 1)) << "the next power of two";
    EXPECT_NE(key_of(size), key_of(size / 2)) << size;
  }
  EXPECT_EQ(key_of(1 << 20), key_of((5 << 18) - 1));
  EXPECT_NE(key_of(1 << 20), key_of(5 << 18));
  EXPECT_NE(key_of(4), key_of(5));
}

// Behind many queued kernels the driver itself may block, so a thread makes the calls while the device is far behind.
TEST_F(NcclCallsAuto, AreMadeInAThreadWhileTheDeviceIsFarBehind) {
  run_gpu_group(1, [](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 1));
    require(me.sum(memory, memory, 10));
    me.gpu.synchronize();
    fake_cuda_hold();
    const std::size_t before = fake_cuda_calls("cuEventQuery");
    for (int i = 0; i < 120; ++i) require(me.sum(memory, memory, 10));
    EXPECT_EQ(fake_cuda_calls("cuEventQuery"), before);
    for (int i = 0; i < 280; ++i) require(me.sum(memory, memory, 10));
    EXPECT_GE(fake_cuda_calls("cuEventQuery") - before, 140u) << "each of the last looks whether it has caught up";
    fake_cuda_go_on();
    me.gpu.synchronize();
    const std::size_t then = fake_cuda_calls("cuEventQuery");
    for (int i = 0; i < 100; ++i) require(me.sum(memory, memory, 10));
    EXPECT_LE(fake_cuda_calls("cuEventQuery") - then, 1u) << "it has";
    me.gpu.synchronize();
    EXPECT_EQ(me.gpu.get(memory, 10), std::vector<float>(10, 1));
  });
}

TEST_F(NcclCallsAuto, EndWhenTheCommunicatorIsInterrupted) {
  for (const bool at_once : {true, false}) {
    run_gpu_group(2, [&](GpuRank& me) {
      float* memory = me.gpu.put(std::vector<float>(10, 1));
      require(me.call({.collective = Collective::broadcast, .count = 10}, memory, memory));
      if (me.rank == 1) return;
      Completion completion;
      EXPECT_FALSE(is_done_at_once(me, memory, 10, completion));  // the other never calls this one
      if (!at_once) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      me.collectives->interrupt(Status(Code::peer_lost, "rank 11 (host-b) was killed"));
      EXPECT_TRUE(completion.done);
      EXPECT_EQ(completion.status.text(), "rank 11 (host-b) was killed");
      EXPECT_EQ(me.sum(memory, memory, 10).text(), "rank 11 (host-b) was killed");
      me.gpu.synchronize();
    });
  }
}

TEST_F(NcclCallsAuto, AreDeferredWhereNcclCannotRevoke) {
  fake_nccl_set("version", 22203);
  run_gpu_group(2, [](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 1));
    require(me.sum(memory, memory, 10));
    me.gpu.synchronize();
  });
  EXPECT_EQ(fake_nccl_calls("CommSplit"), 0);
}

TEST_F(NcclCallsAuto, EndWithTheCommunicator) {
  run_gpu_group(2, [](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 1));
    require(me.call({.collective = Collective::broadcast, .count = 10}, memory, memory));
    if (me.rank == 1) return;
    Completion completion;
    EXPECT_FALSE(is_done_at_once(me, memory, 10, completion));
    me.collectives.reset();
    EXPECT_EQ(completion.status.code(), Code::shut_down);
  });
}

// The first messages with a peer wait for it, and use memory of the channels meanwhile.
TEST_F(NcclCallsAuto, EndWithTheChannels) {
  run_gpu_group(2, [](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 1));
    require(me.sum(memory, memory, 10));
    if (me.rank == 1) return;
    auto channels = me.library.channels_of(*me.collectives);
    require(channels->begin_group());
    require(channels->send(me.gpu.stream(), 1, memory, 40));
    require(channels->end_group());
    EXPECT_FALSE(require(channels->ready()));
    channels.reset();
    EXPECT_EQ(me.sum(memory, memory, 10).code(), Code::shut_down);
  });
}

TEST_F(NcclCallsAuto, ReportFailures) {
  fake_nccl_fail("AllReduce", 2, 2);
  run_gpu_group(1, [](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(20, 1));
    require(me.sum(memory, memory, 10));
    const Status status = me.sum(memory, memory, 20);
    EXPECT_EQ(status.code(), Code::transport);
    EXPECT_THAT(status.text(), HasSubstr("nccl: allreduce failed on rank 10 (host-a): unhandled system error"));
  });
  fake_nccl_reset();
  fake_nccl_fail("RedOpCreatePreMulSum", 1, 2);  // of one of two ranks; the other one waits for it
  std::atomic<bool> failed{false};
  run_gpu_group(2, [&](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 1));
    Completion completion;
    me.collectives->start(me.on_stream({.count = 10, .postscale = 0.25}), {memory, memory}, completion);
    drive_until(
        *me.collectives, [&] { return completion.done || failed.load(); }, "one has failed");
    if (completion.status.ok()) return me.collectives->interrupt(Status(Code::peer_lost, "the other rank has failed"));
    EXPECT_THAT(completion.status.text(), HasSubstr("nccl: making a sum with a factor failed on rank 1"));
    EXPECT_EQ(me.sum(memory, memory, 10).text(), completion.status.text());
    failed = true;
  });
  EXPECT_TRUE(failed.load());
}

}  // namespace
}  // namespace fdl::test
