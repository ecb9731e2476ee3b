// Tests of backend negotiation: how ranks choose between a library and staging on devices, and what they report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/log.h"
#include "tests/support/device_vectors.h"

namespace fdl::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(DeviceCollectives, LibraryRunsWhatItCanAndStagingTheRest) {
  HostLibrary library;
  run_device_ranks(4, with_library(library), [&](DeviceRank& me) {
    EXPECT_EQ(me.comm.runner_of({.device = &me.device}).by, "");
    for (int kind = 0; kind < kCollectiveCount; ++kind) {
      for (const std::size_t count : {0, 5, 300}) {
        run_case(make_case(static_cast<Collective>(kind), Dtype::float32, 4, count, false, count == 5, 2), me);
      }
    }
    EXPECT_EQ(me.comm.runner_of({.count = 5, .device = &me.device}).by, "host library 7");
    const auto staged = me.comm.runner_of({.collective = Collective::reduce, .count = 5, .device = &me.device});
    EXPECT_EQ(staged.by, "staged over loopback");
    EXPECT_EQ(staged.algorithm, "direct");
  });
  EXPECT_EQ(library.started(), 4 * 6);
}

TEST(DeviceCollectives, StagedSettingDoesNotLoadTheLibrary) {
  DeviceRanks participants = staging({{"device_collectives", "staged"}});
  participants.library = [](int) {
    return []() -> Result<DeviceLibrary*> { return Status(Code::internal, "looked for it"); };
  };
  std::mutex mutex;
  std::string log;
  set_log_level(LogLevel::info);
  set_log_sink([&](LogLevel, std::string_view line) {
    std::lock_guard lock(mutex);
    log += line;
  });
  run_device_ranks(2, participants, [&](DeviceRank& me) {
    Ones vector(me, 10);
    require(allreduce(me, vector.memory(), 10));
    EXPECT_EQ(me.comm.runner_of({.count = 5, .device = &me.device}).by, "staged over loopback");
  });
  set_log_sink({});
  set_log_level(LogLevel::warning);
  EXPECT_EQ(log, "");
}

struct Decision {
  std::vector<std::string> lines;
  std::vector<std::string> outcomes;
  std::string by;
};

// Returns what three ranks log and get, when rank r has the library that `give(r)` returns.
Decision decide_backend(const std::string& setting, const std::function<Result<DeviceLibrary*>(int)>& give) {
  DeviceRanks participants = staging({{"device_collectives", setting}, {"start_timeout_s", "0.05"}});
  participants.library = [&](int rank) { return [&give, rank] { return give(rank); }; };
  Decision decision;
  std::mutex mutex;
  set_log_sink([&](LogLevel, std::string_view line) {
    std::lock_guard lock(mutex);
    decision.lines.emplace_back(line);
  });
  run_device_ranks(3, participants, [&](DeviceRank& me) {
    Ones vector(me, 100);
    const Status outcome = allreduce(me, vector.memory(), 100);
    if (outcome.ok()) require(vector.are(3), "wrong sum");
    const Status again = allreduce(me, vector.memory(), 100);
    EXPECT_EQ(outcome.ok(), again.ok());
    const auto by = me.comm.runner_of({.count = 5, .device = &me.device}).by;
    std::lock_guard lock(mutex);
    decision.outcomes.push_back(outcome.ok() ? "" : outcome.text());
    decision.by = by;
  });
  set_log_sink({});
  return decision;
}

TEST(DeviceCollectives, RankWithoutTheLibraryMakesAllRanksStageAndIsNamed) {
  HostLibrary library;
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 2 ? nullptr : &library; };
  const Decision decision = decide_backend("auto", give);
  EXPECT_EQ(decision.outcomes, std::vector<std::string>(3, ""));
  EXPECT_EQ(decision.by, "staged over loopback");
  ASSERT_EQ(decision.lines.size(), 1u);
  EXPECT_THAT(decision.lines[0], AllOf(HasSubstr("rank 12 (host-2) has no library"), HasSubstr("nvidia-nccl")));
  EXPECT_EQ(library.started(), 0);
}

TEST(DeviceCollectives, RequiredLibraryFailsWithTheSameErrorOnAllRanks) {
  HostLibrary library;
  const auto give = [&](int rank) -> Result<DeviceLibrary*> {
    if (rank == 1) return Status(Code::unsupported, "libhost.so.7 is not there");
    return &library;
  };
  const Decision decision = decide_backend("nccl", give);
  for (const std::string& outcome : decision.outcomes) {
    EXPECT_EQ(outcome, decision.outcomes[0]);
    EXPECT_THAT(outcome, AllOf(HasSubstr("device_collectives=nccl"), HasSubstr("rank 11 (host-1) has no library")));
  }
  ASSERT_EQ(decision.lines.size(), 1u);
  EXPECT_THAT(decision.lines[0], HasSubstr("libhost.so.7 is not there"));
}

TEST(DeviceCollectives, LibraryConflictIsReportedOnAllRanks) {
  HostLibrary library, newer({.version = 8});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 2 ? &newer : &library; };
  const Decision staged = decide_backend("auto", give);
  EXPECT_EQ(staged.by, "staged over loopback");
  ASSERT_EQ(staged.lines.size(), 1u);
  EXPECT_THAT(staged.lines[0], HasSubstr("rank 12 has version 8"));
  for (const std::string& outcome : decide_backend("nccl", give).outcomes)
    EXPECT_THAT(outcome, HasSubstr("rank 12 has version 8"));
}

TEST(DeviceCollectives, FailureToMakeAnIdMakesAllRanksStage) {
  HostLibrary library, broken({.no_id = Status(Code::internal, "no socket for an id")});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 0 ? &broken : &library; };
  const Decision staged = decide_backend("auto", give);
  EXPECT_EQ(staged.outcomes, std::vector<std::string>(3, ""));
  ASSERT_EQ(staged.lines.size(), 1u);
  EXPECT_THAT(staged.lines[0], AllOf(HasSubstr("no socket for an id"), HasSubstr("rank 10 (host-0) made an id")));
  for (const std::string& outcome : decide_backend("nccl", give).outcomes)
    EXPECT_THAT(outcome, HasSubstr("no socket for an id"));
}

TEST(DeviceCollectives, FailureToJoinMakesAllRanksStage) {
  HostLibrary library, broken({.no_join = Status(Code::resource, "no memory to join")});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 1 ? &broken : &library; };
  const Decision staged = decide_backend("auto", give);
  EXPECT_EQ(staged.outcomes, std::vector<std::string>(3, ""));
  ASSERT_EQ(staged.lines.size(), 1u);
  EXPECT_THAT(staged.lines[0], AllOf(HasSubstr("no memory to join"), HasSubstr("rank 11 (host-1) joined")));
  for (const std::string& outcome : decide_backend("nccl", give).outcomes)
    EXPECT_THAT(outcome, HasSubstr("no memory to join"));
}

TEST(DeviceCollectives, RankThatNeverJoinsEndsTheOthersAtTheDeadline) {
  HostLibrary library, absent({.absent = true});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 1 ? &absent : &library; };
  const Decision decision = decide_backend("auto", give);
  for (const std::string& outcome : decision.outcomes) {
    EXPECT_THAT(outcome, testing::AnyOf(HasSubstr("2 of 3 ranks have joined in time"), HasSubstr("has left")));
  }
}

TEST(DeviceCollectives, UnknownSettingIsRejectedBeforeAnyExchange) {
  run_device_ranks(2, staging({{"device_collectives", "gloo"}}), [&](DeviceRank& me) {
    Ones vector(me, 10);
    EXPECT_THAT(allreduce(me, vector.memory(), 10).text(), HasSubstr("device_collectives=gloo"));
    require(barrier(me.comm));
  });
}

TEST(DeviceCollectives, SecondDeviceOfARankIsRejectedAndBothAreNamed) {
  HostDevice second({.index = 7});
  run_device_ranks(2, staging(), [&](DeviceRank& me) {
    Ones vector(me, 10);
    require(allreduce(me, vector.memory(), 10));
    const Status refused = call(me.comm, {.dtype = Dtype::int64, .count = 10, .device = &second}, nullptr, nullptr);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.text(), AllOf(HasSubstr("host:7"), HasSubstr("host:" + std::to_string(me.rank()))));
    require(allreduce(me, vector.memory(), 10));
    require(vector.are(4), "wrong sum");
  });
}

TEST(DeviceCollectives, RankThatCallsWithHostMemoryIsAMismatch) {
  for (const bool first : {true, false}) {
    run_device_ranks(2, staging(), [&](DeviceRank& me) {
      Ones vector(me, 300);
      if (!first) require(allreduce(me, vector.memory(), 300));
      std::vector<int64_t> on_host(300, 1);
      const Status outcome = me.rank() == 0
                                 ? allreduce(me, vector.memory(), 300)
                                 : call(me.comm, {.dtype = Dtype::int64, .count = 300}, on_host.data(), on_host.data());
      EXPECT_FALSE(outcome.ok());
      EXPECT_THAT(outcome.text(), testing::AnyOf(HasSubstr("did not call the same operation"), HasSubstr("has left")));
    });
  }
}

TEST(DeviceCollectives, RankLostDuringNegotiationIsNamed) {
  HostLibrary library;
  run_device_ranks(2, with_library(library), [&](DeviceRank& me) {
    require(barrier(me.comm));
    if (me.rank() == 1) return;
    Ones vector(me, 300);
    const Status outcome = allreduce(me, vector.memory(), 300);
    EXPECT_THAT(outcome.text(), HasSubstr("rank 11 (host-1)"));
  });
}

TEST(DeviceCollectives, HostCollectivesDeviceCollectivesAndMessagesAlternate) {
  HostLibrary library;
  for (DeviceRanks participants : {staging(), with_library(library)}) {
    run_device_ranks(3, participants, [&](DeviceRank& me) {
      Ones vector(me, 300);
      for (int64_t round = 0; round < 5; ++round) {
        int64_t word = me.rank(), from_left = -1;
        Message send{
            .peer = (me.rank() + 1) % 3, .outgoing = true, .data = reinterpret_cast<std::byte*>(&word), .bytes = 8};
        Message recv{.peer = (me.rank() + 2) % 3, .data = reinterpret_cast<std::byte*>(&from_left), .bytes = 8};
        me.comm.start(recv);
        Operation on_device;
        on_device.spec = {.dtype = Dtype::int64, .count = 300, .device = &me.device, .stream = me.stream};
        on_device.buffers = {vector.memory(), vector.memory()};
        me.comm.start(on_device);
        me.comm.start(send);
        std::vector<int64_t> on_host(100, 1);
        require(call(me.comm, {.dtype = Dtype::int64, .count = 100}, on_host.data(), on_host.data()));
        require(on_device.completion.done, "the one before was not done");
        require(on_host == std::vector<int64_t>(100, 3), "wrong sum on the host");
        require(me.comm.wait(recv.completion, Deadline::after_seconds(60)));
        require(me.comm.wait(send.completion, Deadline::after_seconds(60)));
        require(from_left == (me.rank() + 2) % 3, "wrong message");
      }
      require(vector.are(3 * 3 * 3 * 3 * 3), "wrong sum on the device");
    });
  }
}

}  // namespace
}  // namespace fdl::test
