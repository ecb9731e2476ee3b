// These tests cover failures of NCCL: while joining, at work, and at the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>

#include "tests/support/nccl_fixture.h"
#include "transports/nccl/nccl_collectives.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

TEST_F(Nccl, NamesRanksThatMayBeMissingAtTheStart) {
  const Config config = fake_config();
  const auto library = require(open_nccl(config, false));
  Gpu gpu(1, config);
  auto joined = require(
      library->join(require(library->make_id()), 1, make_members(7), gpu.device(), Deadline::after_seconds(0.1)));
  GpuRank me{1, 7, *library, gpu, std::move(joined)};
  float* memory = gpu.put(std::vector<float>(1, 1));
  const Status status = me.sum(memory, memory, 1);
  EXPECT_EQ(status.code(), Code::timeout);
  EXPECT_EQ(
      status.text(),
      "nccl: rank 11 (host-b) has joined, but not all other ranks did in time; it waited for rank 10 (host-a), rank 12 "
      "(host-c), rank 13 (host-d), rank 14 (host-e) and 2 more: see their logs");
  EXPECT_EQ(me.sum(memory, memory, 1).text(), status.text()) << "the error stays";
  me.collectives.reset();
  EXPECT_EQ(fake_nccl_calls("CommAbort"), 1);
}

TEST_F(Nccl, FailsAtTheDeadlineIfJoiningHangs) {
  fake_nccl_set("hang_at_start", 1);
  const Config config = fake_config();
  const auto library = require(open_nccl(config, false));
  const auto id = require(library->make_id());
  run_ranks(2, [&](int rank) {
    Gpu gpu(rank, config);
    auto joined = require(library->join(id, rank, make_members(2), gpu.device(), Deadline::after_seconds(0.1)));
    drive_until(
        *joined, [&] { return !static_cast<NcclCollectives&>(*joined).communicator().status().ok(); },
        "the deadline is noticed without any collective");
  });
}

TEST_F(Nccl, CanBeInterruptedBeforeAllHaveJoined) {
  const Config config = fake_config();
  const auto library = require(open_nccl(config, false));
  Gpu gpu(0, config);
  auto joined =
      require(library->join(require(library->make_id()), 0, make_members(2), gpu.device(), Deadline::never()));
  Completion done;
  float* memory = gpu.put(std::vector<float>(1, 1));
  CollectiveSpec spec{.count = 1, .device = &gpu.device(), .stream = gpu.stream()};
  joined->start(spec, {memory, memory}, done);
  EXPECT_FALSE(done.done);
  EXPECT_EQ(joined->phase(), "nccl allreduce, before all have joined");
  joined->interrupt(Status(Code::peer_lost, "rank 11 (host-b) was killed"));
  EXPECT_TRUE(done.done);
  EXPECT_EQ(done.status.text(), "rank 11 (host-b) was killed");
}

// Runs with a version that can revoke and with one that can only abort.
TEST_F(Nccl, EndsWorkInFlightWhenInterrupted) {
  for (const int version : {22203, 23203}) {
    fake_nccl_reset();
    fake_nccl_set("version", version);
    run_gpu_group(2, [&](GpuRank& me) {
      float* memory = me.gpu.put(std::vector<float>(10, 1));
      require(me.sum(memory, memory, 10));
      if (me.rank == 1) return;
      require(me.sum(memory, memory, 10));  // the other never calls this one
      me.collectives->interrupt(Status(Code::peer_lost, "rank 11 (host-b) was killed"));
      me.gpu.synchronize();
      EXPECT_EQ(me.sum(memory, memory, 10).text(), "rank 11 (host-b) was killed");
    });
    EXPECT_EQ(fake_nccl_calls("CommRevoke"), version >= 22807 ? 1 : 0);
  }
}

// Rank 1 never calls, so that rank 0 stays inside NCCL until the watchdog aborts the communicator.
TEST_F(Nccl, EndsADirectCallThatStaysBlocked) {
  fake_nccl_set("connects", 1);
  run_gpu_group(
      2,
      [&](GpuRank& me) {
        Completion completion;
        me.collectives->start(me.on_stream({.collective = Collective::barrier}), {}, completion);
        require(wait(*me.collectives, completion));
        if (me.rank == 1) return;
        float* memory = me.gpu.put(std::vector<float>(10, 1));
        const Status blocked = me.call({.collective = Collective::broadcast, .count = 10}, memory, memory);
        EXPECT_EQ(blocked.code(), Code::timeout);
        EXPECT_THAT(blocked.text(), HasSubstr("nccl: broadcast on rank 10 (host-a) was blocked inside NCCL for 0.2 s"));
        EXPECT_THAT(blocked.text(), HasSubstr("with rank 11 (host-b)"));
        EXPECT_EQ(me.sum(memory, memory, 10).text(), blocked.text());
        me.gpu.synchronize();
      },
      fake_config({{"nccl_calls", "direct"}, {"nccl_call_timeout_s", "0.2"}}));
  EXPECT_GE(fake_nccl_calls("CommAbort"), 1);
}

// The split-off communicator shares the flag for aborts with its parent, so that both end in good order.
TEST_F(Nccl, EndsDirectCommunicatorsWithoutAnAbort) {
  run_gpu_group(
      2,
      [&](GpuRank& me) {
        float* memory = me.gpu.put(std::vector<float>(10, 1));
        require(me.sum(memory, memory, 10));
        EXPECT_GE(fake_nccl_count("shared"), 1);
        me.gpu.synchronize();
      },
      fake_config({{"nccl_calls", "direct"}, {"suspect_after_s", "20"}}));
  EXPECT_EQ(fake_nccl_calls("CommAbort"), 0);
  EXPECT_EQ(fake_nccl_count("shared"), 0);
  EXPECT_EQ(fake_nccl_calls("CommDestroy"), 4);
}

TEST_F(Nccl, DetectsAnAsynchronousErrorWhileWatching) {
  fake_nccl_set("error_at", 3);  // the second allreduce of one of the two
  run_gpu_group(
      2,
      [&](GpuRank& me) {
        float* memory = me.gpu.put(std::vector<float>(10, 1));
        require(me.sum(memory, memory, 10));
        Status status = me.sum(memory, memory, 10);
        const Status& now = static_cast<NcclCollectives&>(*me.collectives).communicator().status();
        static std::atomic<bool> one{false};
        drive_until(
            *me.collectives, [&] { return !now.ok() || one.load(); }, "the error is detected");
        if (!now.ok()) {
          EXPECT_THAT(now.text(), HasSubstr("nccl: allreduce failed on rank 1"));
          EXPECT_THAT(now.text(), HasSubstr("remote process exited or there was a network error (fake: the network has "
                                            "failed)"));
          EXPECT_THAT(now.text(), HasSubstr("; with rank 1"));
          EXPECT_THAT(now.text(), HasSubstr("NCCL_DEBUG=WARN"));
          one.store(true);
        } else {
          me.collectives->interrupt(Status(Code::aborted, "as its peer says"));
        }
        me.gpu.synchronize();
      },
      fake_config({{"suspect_after_s", "0.02"}}));
}

// Blocks a stream until it is opened.
struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
  bool is_open = false;

  void queue_on(Stream stream) {
    const auto wait = [](void* self) {
      auto& gate = *static_cast<Gate*>(self);
      std::unique_lock lock(gate.mutex);
      gate.opened.wait(lock, [&] { return gate.is_open; });
    };
    ASSERT_EQ(fake_cuda_queue(stream, wait, this), 0);
  }
  void open() {
    std::lock_guard lock(mutex);
    is_open = true;
    opened.notify_all();
  }
};

TEST_F(Nccl, ReportsWhetherAnyWorkHasRun) {
  Gate first;
  Gate second;
  run_gpu_group(1, [&](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 1));
    const auto poll = [&] { return me.library.poll_work(*me.collectives); };
    const auto open = [](Gate* gate) { gate->open(); };
    const std::unique_ptr<Gate, void (*)(Gate*)> in_the_end[] = {{&first, open}, {&second, open}};
    EXPECT_FALSE(poll().in_flight);
    first.queue_on(me.gpu.stream());
    require(me.sum(memory, memory, 10));
    second.queue_on(me.gpu.stream());
    require(me.sum(memory, memory, 10));
    const uint64_t before = poll().passed;
    EXPECT_TRUE(poll().in_flight);
    require(me.sum(memory, memory, 10));
    EXPECT_EQ(poll().passed, before) << "work queued later is no progress";
    first.open();
    const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
    while (poll().passed == before) require(!deadline.passed(), "the first sum never ends");
    EXPECT_TRUE(poll().in_flight) << "the second does not begin";
    require(me.sum(memory, memory, 10));
    EXPECT_EQ(poll().passed, before + 1);
    second.open();
    me.gpu.synchronize();
    EXPECT_FALSE(poll().in_flight);
    EXPECT_EQ(poll().passed, before + 2);
  });
}

TEST_F(Nccl, SetsOneExtraEventForProgressReports) {
  run_gpu_group(1, [&](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 1));
    require(me.sum(memory, memory, 10));
    for (int round = 0; round < 3; ++round) {
      me.gpu.synchronize();
      EXPECT_FALSE(me.library.poll_work(*me.collectives).in_flight);
      const std::size_t before = fake_cuda_calls("cuEventRecord");
      for (int i = 0; i < 100; ++i) require(me.sum(memory, memory, 10));
      EXPECT_EQ(fake_cuda_calls("cuEventRecord") - before, 101u) << "one event behind each sum, and one that stays";
    }
  });
}

TEST_F(Nccl, ReportsTheErrorOfACall) {
  for (const char* function : {"CommInitRankConfig", "AllReduce", "GroupEnd", "CommGetAsyncError"}) {
    fake_nccl_reset();
    fake_nccl_fail(function, 1, 2);
    const Config config = fake_config();
    const auto library = require(open_nccl(config, false));
    Gpu gpu(0, config);
    auto joined = library->join(require(library->make_id()), 0, make_members(1), gpu.device(), Deadline::never());
    Status status = joined.ok() ? Status() : joined.status();
    if (joined.ok()) {
      GpuRank me{0, 1, *library, gpu, joined.take()};
      float* memory = gpu.put(std::vector<float>(4, 1));
      const std::size_t counts[] = {4};  // messages of this rank to itself, in a group
      const bool grouped = std::string(function) == "GroupEnd";
      status = grouped ? me.call({.collective = Collective::alltoall, .counts = counts, .recv_counts = counts}, memory,
                                 me.gpu.put(std::vector<float>(4, 0)))
                       : me.sum(memory, memory, 4);
    }
    EXPECT_EQ(status.code(), Code::transport) << function;
    EXPECT_THAT(status.text(), HasSubstr("rank 10 (host-a)"));
    EXPECT_THAT(status.text(), HasSubstr("unhandled system error")) << function;
  }
  fake_nccl_reset();
  fake_nccl_fail("GetUniqueId", 1, 2);
  const auto id = require(open_nccl(fake_config(), false))->make_id();
  EXPECT_THAT(id.status().text(), HasSubstr("no id for a group: unhandled system error"));
}

TEST_F(Nccl, ReportsAFailureOfTheDevice) {
  run_gpu_group(1, [&](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(4, 1));
    fake_cuda_fail("cuStreamIsCapturing", 1, 999);
    const Status status = me.sum(memory, memory, 4);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.text(), HasSubstr("cuda:0"));
    fake_cuda_clear_failures();
  });
}

TEST_F(Nccl, ReportsHowMuchScratchItCouldNotAllocate) {
  run_gpu_group(1, [&](GpuRank& me) {
    const std::vector<float> many(30'000, 1);
    float* memory = me.gpu.put(many);
    fake_cuda_fail("cuMemAlloc_v2", 1, 2);
    fake_cuda_fail("cuMemAlloc_v2", 2, 2);
    fake_cuda_fail("cuMemAlloc_v2", 3, 2);
    fake_cuda_fail("cuMemAlloc_v2", 4, 2);
    const Status status = me.call({.reduction = {Op::max}, .count = many.size()}, memory, memory);
    EXPECT_EQ(status.code(), Code::resource);
    EXPECT_THAT(status.text(), HasSubstr("allocating 120064 bytes of scratch memory for a collective by nccl"));
    fake_cuda_clear_failures();
  });
}

TEST_F(Nccl, FinalizesWhenAllRanksEnd) {
  run_gpu_group(
      3,
      [&](GpuRank& me) {
        float* memory = me.gpu.put(std::vector<float>(10, 1));
        require(me.call({.count = 10, .postscale = 0.5}, memory, memory));
      },
      fake_config({{"suspect_after_s", "30"}}));
  EXPECT_EQ(fake_nccl_calls("CommDestroy"), 2 * 3) << "a parent and the one that is split off on each rank";
  EXPECT_EQ(fake_nccl_calls("CommAbort"), 0);
}

TEST_F(Nccl, DoesNotWaitForeverForOthersToFinalize) {
  const Config config = fake_config({{"nccl_calls", "deferred"}, {"suspect_after_s", "0.02"}});
  const auto library = require(open_nccl(config, false));
  const auto id = require(library->make_id());
  std::atomic<bool> first_has_ended{false};
  run_ranks(2, [&](int rank) {
    Gpu gpu(rank, config);
    auto joined = require(library->join(id, rank, make_members(2), gpu.device(), Deadline::after_seconds(30)));
    GpuRank me{rank, 2, *library, gpu, std::move(joined)};
    float* memory = gpu.put(std::vector<float>(10, 1));
    require(me.sum(memory, memory, 10));
    gpu.synchronize();
    if (rank == 1) {
      const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
      while (!first_has_ended.load()) require(!deadline.passed(), "rank 0 hangs in its end");
    }
    me.collectives.reset();
    first_has_ended.store(true);
  });
  EXPECT_EQ(fake_nccl_calls("CommAbort"), 1);
}

TEST_F(Nccl, CompletesACollectiveInFlightWhenItEnds) {
  const Config config = fake_config({{"suspect_after_s", "0.02"}});
  const auto library = require(open_nccl(config, false));
  Gpu gpu(0, config);
  auto joined =
      require(library->join(require(library->make_id()), 0, make_members(2), gpu.device(), Deadline::never()));
  Completion done;
  float* memory = gpu.put(std::vector<float>(1, 1));
  joined->start({.count = 1, .device = &gpu.device(), .stream = gpu.stream()}, {memory, memory}, done);
  joined.reset();
  EXPECT_EQ(done.status.code(), Code::shut_down);
}

// The error appears while joining or at the first collective, depending on which rank is last.
Status sum_on_the_first_gpu(DeviceLibrary& library, const DeviceLibrary::Id& id, int rank, float& result) {
  Gpu gpu(0, fake_config());
  auto joined = library.join(id, rank, make_members(2), gpu.device(), Deadline::after_seconds(kTimeoutSeconds));
  if (!joined.ok()) return joined.status();
  GpuRank me{rank, 2, library, gpu, joined.take()};
  float* memory = gpu.put(std::vector<float>(1, 1));
  FDL_RETURN_IF_ERROR(me.sum(memory, memory, 1));
  gpu.synchronize();
  result = gpu.get(memory, 1).front();
  return {};
}

TEST_F(Nccl, ReportsRanksThatShareADevice) {
  const auto library = require(open_nccl(fake_config(), false));
  for (const bool allowed : {false, true}) {
    fake_nccl_set("multi_rank_gpu", allowed ? 1 : 0);
    const auto id = require(library->make_id());
    run_ranks(2, [&](int rank) {
      float result = 0;
      const Status status = sum_on_the_first_gpu(*library, id, rank, result);
      EXPECT_EQ(status.ok(), allowed);
      EXPECT_EQ(result, allowed ? 2 : 0);
      EXPECT_THAT(status.ok() ? "" : status.text(), HasSubstr(allowed ? "" : "Multiple Ranks are using the same GPU"));
    });
  }
}

}  // namespace
}  // namespace fdl::test
