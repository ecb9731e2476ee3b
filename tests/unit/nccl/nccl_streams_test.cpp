// These tests cover NCCL on streams: queueing, capture, watching and sleeping.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "tests/support/nccl_fixture.h"

namespace fdl::test {
namespace {

TEST_F(Nccl, IsDoneWhenQueuedRatherThanWhenRun) {
  run_gpu_group(2, [&](GpuRank& me) {
    const std::vector<float> ones(100, 1);
    float* memory = me.gpu.put(ones);
    if (me.rank == 0) {
      ASSERT_TRUE(me.sum(memory, memory, 100).ok());  // although the other rank has not called
      const DeviceEvent event = require(me.gpu.device().make_event());
      require(me.gpu.device().set(event, me.gpu.stream()));
      EXPECT_FALSE(require(me.gpu.device().reached(event)));
      me.gpu.device().end_event(event);
      fake_nccl_set("multi_rank_gpu", 7);  // a signal: the other rank may call now
    } else {
      const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
      while (fake_nccl_calls("AllReduce") == 0) require(!deadline.passed(), "rank 0 did not call");
      require(wait_readable(-1, Deadline::after_seconds(0.05)) == false, "nothing to read");
      ASSERT_TRUE(me.sum(memory, memory, 100).ok());
    }
    me.gpu.synchronize();
    EXPECT_EQ(me.gpu.get(memory, 100), std::vector<float>(100, 2));
  });
}

TEST_F(Nccl, SleepsWhileNcclIsBusy) {
  fake_nccl_set("defer_us", 3000);
  run_gpu_group(
      2,
      [&](GpuRank& me) {
        float* memory = me.gpu.put(std::vector<float>(10, 3));
        for (int i = 0; i < 3; ++i) ASSERT_TRUE(me.sum(memory, memory, 10).ok());
        me.gpu.synchronize();
        EXPECT_EQ(me.gpu.get(memory, 10), std::vector<float>(10, 24));
      },
      fake_config({{"nccl_calls", "deferred"}}));
}

// NCCL has queued a small group within microseconds. A timer would cost more than that.
TEST_F(Nccl, DoesNotSleepForAGroupThatIsQueuedSoon) {
  fake_nccl_set("defer_us", 10);
  run_gpu_group(
      2,
      [&](GpuRank& me) {
        float* memory = me.gpu.put(std::vector<float>(10, 1));
        ASSERT_TRUE(me.sum(memory, memory, 10).ok());  // the first waits until all ranks have joined
        for (int i = 0; i < 20; ++i) {
          Completion completion;
          me.collectives->start(me.on_stream({.count = 10}), {memory, memory}, completion);
          EXPECT_TRUE(completion.done);
          require(wait(*me.collectives, completion));
        }
        me.gpu.synchronize();
      },
      fake_config({{"nccl_calls", "deferred"}}));
}

TEST_F(Nccl, CausesNoWakeUpOnceAllIsDone) {
  const Config watching = fake_config({{"suspect_after_s", "0.02"}});
  run_gpu_group(
      2,
      [&](GpuRank& me) {
        float* memory = me.gpu.put(std::vector<float>(10, 3));
        ASSERT_TRUE(me.sum(memory, memory, 10).ok());
        me.gpu.synchronize();
        // The first look finds that the device has finished; there must be no wake-ups after that.
        int wakes = 0;
        for (bool woken = true; woken; ++wakes) {
          me.collectives->progress();
          ASSERT_TRUE(me.collectives->prepare_to_sleep());
          woken = wait_readable(me.collectives->wake_fd(), Deadline::after_seconds(0.5));
          me.collectives->finish_sleep();
        }
        EXPECT_LE(wakes, 3);
      },
      watching);
}

TEST_F(Nccl, OrdersScratchBetweenStreams) {
  run_gpu_group(2, [&](GpuRank& me) {
    Device& device = me.gpu.device();
    const Stream other = require(device.make_stream());
    fake_cuda_delay_us(300);
    float* first = me.gpu.put(std::vector<float>(100, static_cast<float>(me.rank)));
    float* second = me.gpu.put(std::vector<float>(100, static_cast<float>(me.rank + 5)));
    CollectiveSpec spec = me.on_stream({.reduction = {Op::max}, .count = 100});
    Completion done;
    me.collectives->start(spec, {first, first}, done);
    require(wait(*me.collectives, done));
    spec.stream = other;
    Completion again;
    me.collectives->start(spec, {second, second}, again);
    require(wait(*me.collectives, again));
    me.gpu.synchronize();
    me.gpu.synchronize(other);
    EXPECT_EQ(me.gpu.get(first, 100), std::vector<float>(100, 1));
    EXPECT_EQ(me.gpu.get(second, 100), std::vector<float>(100, 6));
    device.end_stream(other);
  });
  fake_cuda_delay_us(0);
}

TEST_F(Nccl, CanBeCapturedIntoAGraph) {
  for (const Op op : {Op::sum, Op::max}) {
    run_gpu_group(2, [&](GpuRank& me) {
      float* memory = me.gpu.put(std::vector<float>(20, static_cast<float>(me.rank + 1)));
      float* output = me.gpu.put(std::vector<float>(20, 0));
      require(me.call({.reduction = {op}, .count = 20}, memory, output));
      me.gpu.synchronize();
      {
        static std::mutex turn;  // the fake replays only the last capture
        const std::lock_guard lock(turn);
        ASSERT_EQ(fake_cuda_begin_capture(me.gpu.stream()), 0);
        require(me.call({.reduction = {op}, .count = 20}, memory, output));
        EXPECT_GE(fake_cuda_end_capture(me.gpu.stream()), 1);
        fake_cuda_write(output, std::vector<float>(20, 0).data(), 80);
        for (int replay = 0; replay < 2; ++replay) ASSERT_EQ(fake_cuda_launch_captured(me.gpu.stream()), 0);
      }
      me.gpu.synchronize();
      EXPECT_EQ(me.gpu.get(output, 20), std::vector<float>(20, op == Op::sum ? 3 : 2));
    });
  }
}

// The program replays the graph when it likes, so nothing else may get the scratch memory that it uses. The collectives
// before it are on another stream.
TEST_F(Nccl, KeepsTheScratchOfAGraph) {
  run_gpu_group(1, [&](GpuRank& me) {
    Device& device = me.gpu.device();
    const Stream captured = require(device.make_stream());
    float* memory = me.gpu.put(std::vector<float>(30'000, 1));
    const auto max_of = [&](std::size_t count, Stream stream) {
      CollectiveSpec spec = me.on_stream({.reduction = {Op::max}, .count = count});
      spec.stream = stream;
      Completion done;
      me.collectives->start(spec, {memory, memory}, done);
      require(wait(*me.collectives, done));
    };
    max_of(20, me.gpu.stream());
    me.gpu.synchronize();
    EXPECT_FALSE(me.library.poll_work(*me.collectives).in_flight);
    ASSERT_EQ(fake_cuda_begin_capture(captured), 0);
    for (const std::size_t count : {20, 5000}) max_of(count, captured);
    EXPECT_FALSE(me.library.poll_work(*me.collectives).in_flight);
    EXPECT_GE(fake_cuda_end_capture(captured), 1);
    max_of(30'000, me.gpu.stream());
    me.gpu.synchronize();
    const std::vector<int32_t> others(5000, 7);
    std::vector<std::pair<int32_t*, std::size_t>> blocks;
    for (const std::size_t count : {20, 20, 20, 5000, 5000, 5000}) {
      blocks.emplace_back(static_cast<int32_t*>(require(device.allocate(4 * count))), count);
      fake_cuda_write(blocks.back().first, others.data(), 4 * count);
    }
    ASSERT_EQ(fake_cuda_launch_captured(captured), 0);
    me.gpu.synchronize(captured);
    for (const auto& [block, count] : blocks) {
      EXPECT_EQ(me.gpu.get(block, count), std::vector<int32_t>(count, 7));
      device.release(block);
    }
    device.end_stream(captured);
  });
}

// The device has no work inside a graph to wait for, and asking for the state of a captured event would end the
// capture.
TEST_F(Nccl, ReleasesMemoryDuringACapture) {
  run_gpu_group(2, [&](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(20, static_cast<float>(me.rank + 1)));
    require(me.call({.reduction = {Op::max}, .count = 20}, memory, memory));
    me.gpu.synchronize();
    Device& device = me.gpu.device();
    void* const before = require(device.allocate(100'000));
    const Stream other = require(device.make_stream());
    require(device.copy(other, before, memory, 80));
    ASSERT_EQ(fake_cuda_begin_capture(me.gpu.stream()), 0);
    require(me.call({.reduction = {Op::max}, .count = 20}, memory, memory));
    device.release(before);
    void* const during = require(device.allocate(100'000));
    device.release(during);
    device.release(require(device.allocate(5000)));
    EXPECT_GE(fake_cuda_end_capture(me.gpu.stream()), 1);
    device.end_stream(other);
  });
}

}  // namespace
}  // namespace fdl::test
