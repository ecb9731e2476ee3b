// These tests cover messages between devices through NCCL: transfer, failures, late ranks, and capture into graphs.
#include "transports/nccl/nccl_channels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/nccl_fixture.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(Nccl, CarriesMessagesOnChannels) {
  run_gpu_group(3, [&](GpuRank& me) {
    const auto channels = me.library.channels_of(*me.collectives);
    const auto wait_ready = [&] {
      drive_until(
          *me.collectives, [&] { return require(channels->ready()); }, "the channels are ready");
    };
    float* mine = me.gpu.put(std::vector<float>(30'000, static_cast<float>(me.rank)));
    float* theirs = me.gpu.put(std::vector<float>(30'000, -1));
    const int next = (me.rank + 1) % 3, prev = (me.rank + 2) % 3;
    for (int round = 0; round < 2; ++round) {  // round 1 forwards what round 0 received
      wait_ready();
      require(channels->begin_group());
      require(channels->send(me.gpu.stream(), next, round == 0 ? mine : theirs, 120'000));
      require(channels->recv(me.gpu.stream(), prev, round == 0 ? theirs : mine, 120'000));
      require(channels->end_group());
    }
    wait_ready();
    me.gpu.synchronize();
    EXPECT_EQ(me.gpu.get(mine, 30'000), std::vector<float>(30'000, static_cast<float>((me.rank + 1) % 3)));
  });
}

// Sends a message from each rank to the next one, on channels.
void pass_on(GpuRank& me, DeviceChannels& channels, float* mine, float* theirs, std::size_t count) {
  drive_until(
      *me.collectives, [&] { return require(channels.ready()); }, "the channels are ready");
  require(channels.begin_group());
  require(channels.send(me.gpu.stream(), (me.rank + 1) % me.size, mine, count * sizeof(float)));
  require(channels.recv(me.gpu.stream(), (me.rank + me.size - 1) % me.size, theirs, count * sizeof(float)));
  require(channels.end_group());
  drive_until(
      *me.collectives, [&] { return require(channels.ready()); }, "the messages are queued");
}

// No rank calls anything more. The rank that watches the work on its device detects the error, and names the peers of
// the messages. The others are interrupted, which frees their devices.
TEST_F(Nccl, DetectsAnAsynchronousErrorOfMessages) {
  for (const int version : {22203, 23203}) {
    fake_nccl_reset();
    fake_nccl_set("version", version);
    std::atomic<int> one{-1};
    fake_nccl_set("error_at", 6);  // the second message of one of the four
    run_gpu_group(
        4,
        [&](GpuRank& me) {
          const auto channels = me.library.channels_of(*me.collectives);
          float* mine = me.gpu.put(std::vector<float>(10, 1));
          float* theirs = me.gpu.put(std::vector<float>(10, 0));
          for (int round = 0; round < 2; ++round) pass_on(me, *channels, mine, theirs, 10);
          const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
          while (me.library.status_of(*me.collectives).ok() && one.load() < 0) {
            require(!deadline.passed(), "no rank has detected the error");
            // A rank that has finished is not woken by another rank's error.
            if (!me.collectives->progress()) me.collectives->sleep_until_ready(Deadline::after_seconds(0.01));
          }
          const Status status = me.library.status_of(*me.collectives);
          if (!status.ok()) {
            one.store(me.rank);
            EXPECT_EQ(status.code(), Code::transport);
            EXPECT_THAT(status.text(), HasSubstr("nccl: messages failed on rank 1" + std::to_string(me.rank)));
            EXPECT_THAT(status.text(), HasSubstr("(fake: the network has failed)"));
            EXPECT_THAT(status.text(), HasSubstr("; with rank 1" + std::to_string((me.rank + 1) % 4)));
            EXPECT_THAT(status.text(), HasSubstr(", rank 1" + std::to_string((me.rank + 3) % 4)));
            EXPECT_THAT(status.text(), Not(HasSubstr("rank 1" + std::to_string((me.rank + 2) % 4) + " ")));
            EXPECT_THAT(status.text(), HasSubstr("NCCL_DEBUG=WARN"));
            EXPECT_EQ(channels->ready().status().text(), status.text());
          } else {
            me.collectives->interrupt(Status(Code::aborted, "as its peer says"));
          }
          me.gpu.synchronize();
        },
        fake_config({{"suspect_after_s", "0.02"}}));
    EXPECT_GE(one.load(), 0);
  }
}

// A rank never sends its messages. The others' work waits on the device until an interrupt ends it.
TEST_F(Nccl, EndsMessagesThatWaitForALateRank) {
  run_gpu_group(2, [&](GpuRank& me) {
    const auto channels = me.library.channels_of(*me.collectives);
    float* mine = me.gpu.put(std::vector<float>(10, 1));
    float* theirs = me.gpu.put(std::vector<float>(10, 0));
    pass_on(me, *channels, mine, theirs, 10);
    if (me.rank == 1) return;
    pass_on(me, *channels, mine, theirs, 10);
    EXPECT_EQ(me.collectives->phase(), "nccl messages");
    me.collectives->interrupt(Status(Code::timeout, "rank 11 (host-b) is late"));
    me.gpu.synchronize();
    EXPECT_EQ(channels->ready().status().text(), "rank 11 (host-b) is late");
    EXPECT_EQ(me.sum(mine, mine, 10).text(), "rank 11 (host-b) is late");
  });
}

TEST_F(Nccl, DoesNotWatchCapturedMessages) {
  run_gpu_group(
      1,
      [&](GpuRank& me) {
        const auto channels = me.library.channels_of(*me.collectives);
        float* mine = me.gpu.put(std::vector<float>(10, 1));
        float* theirs = me.gpu.put(std::vector<float>(10, 0));
        ASSERT_EQ(fake_cuda_begin_capture(me.gpu.stream()), 0);
        pass_on(me, *channels, mine, theirs, 10);
        EXPECT_EQ(fake_cuda_end_capture(me.gpu.stream()), 1);
        ASSERT_TRUE(me.collectives->prepare_to_sleep());
        EXPECT_FALSE(wait_readable(me.collectives->wake_fd(), Deadline::after_seconds(0.3))) << "nothing is watched";
        me.collectives->finish_sleep();
      },
      fake_config({{"suspect_after_s", "0.02"}}));
}

}  // namespace
}  // namespace fdl::test
