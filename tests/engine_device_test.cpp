// Collectives on devices: staged through the host's memory, by a library, and how ranks come to agree which.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "algorithms/catalog.h"
#include "base/log.h"
#include "tests/support/device_team.h"

namespace fdl::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kSegment = 256;  // bytes

DeviceTeam staging(std::map<std::string, std::string> options = {}) {
  options.try_emplace("device_staging_bytes", std::to_string(kSegment));
  options.try_emplace("deterministic", "1");
  options.try_emplace("slice_bytes", "96");
  options.try_emplace("suspect_after_s", "0.01");
  return {.config = make_config(options)};
}

DeviceTeam with_library(HostLibrary& library, std::map<std::string, std::string> options = {}) {
  DeviceTeam team = staging(std::move(options));
  team.library = [&library](int) { return [&library]() -> Result<DeviceLibrary*> { return &library; }; };
  return team;
}

Status allreduce(DeviceRank& me, void* memory, std::size_t count) {
  return call(me.comm, {.dtype = Dtype::int64, .count = count, .device = &me.device, .stream = me.stream}, memory,
              memory);
}

// A vector of ones on the device, given back at the end.
class Ones {
 public:
  Ones(DeviceRank& me, std::size_t count) : me_(me), count_(count) {
    memory_ = require(me.device.allocate(count * 8));
    const std::vector<int64_t> ones(count, 1);
    me.device.upload(me.stream, memory_, ones.data(), count * 8);
  }
  ~Ones() { me_.device.release(memory_); }
  void* memory() const { return memory_; }
  bool are(int64_t value) const {
    std::vector<int64_t> values(count_);
    me_.device.download(me_.stream, values.data(), memory_, count_ * 8);
    return values == std::vector<int64_t>(count_, value);
  }

 private:
  DeviceRank& me_;
  std::size_t count_;
  void* memory_;
};

// ---- Staged: every collective -------------------------------------------------------------------------------------

TEST(Staged, EveryCollectiveIsExactInSizesAroundASegment) {
  for (int size = 1; size <= 5; ++size) {
    DeviceTeam team = staging();
    team.device.most_delay_us = 30;
    team.device.seed = static_cast<uint64_t>(size) * 100;
    run_device_team(size, team, [&](DeviceRank& me) {
      uint64_t seed = 1;
      constexpr Dtype kTypes[] = {Dtype::float32, Dtype::bfloat16, Dtype::uint8};
      for (int kind = 0; kind < kCollectiveCount; ++kind) {
        const Dtype dtype = kTypes[(size + kind) % 3];
        const std::size_t segment = kSegment / size_of(dtype);
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{1}, segment - 1, segment, segment + 1, 5 * segment + 7}) {
          for (const bool even : {true, false}) {
            for (const bool in_place : {true, false}) {
              run_case(make_case(static_cast<Collective>(kind), dtype, size, count, even, in_place, ++seed), me);
            }
          }
        }
      }
    });
  }
}

TEST(Staged, EveryTypeIsFoldedAndScaledAsOnTheHost) {
  run_device_team(3, staging(), [&](DeviceRank& me) {
    for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
      for (const Collective kind : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
        for (const double prescale : {1.0, 0.5}) {
          CollectiveCase c = make_case(kind, static_cast<Dtype>(dtype), 3, 150, true, dtype % 2 == 0, 7);
          c.prescale = prescale;
          c.postscale = prescale == 1 ? 1 : 3;
          run_case(c, me);
        }
      }
    }
  });
}

TEST(Staged, AUsersOwnFunctionIsCalledOnTheHost) {
  run_device_team(3, staging(), [&](DeviceRank& me) {
    const UserOp last{.function = [](const void*, void*, std::size_t, int, void*) {}, .commutative = false};
    Ones vector(me, 100);
    require(call(me.comm,
                 {.dtype = Dtype::int64,
                  .reduction = {Op::user, &last},
                  .count = 100,
                  .device = &me.device,
                  .stream = me.stream},
                 vector.memory(), vector.memory()));
    require(vector.are(1), "wrong");
  });
}

// One rank needs nobody, and so may be captured.
TEST(Staged, AGroupOfOneIsTheDevicesAlone) {
  run_device_team(1, staging(), [&](DeviceRank& me) {
    me.device.capture(me.stream, true);
    for (const bool in_place : {true, false}) {
      for (const double prescale : {1.0, 0.5}) {
        CollectiveCase c = make_case(Collective::allreduce, Dtype::float16, 1, 1000, true, in_place, 3);
        c.prescale = prescale;
        c.postscale = prescale == 1 ? 1 : 0.3;
        run_case(c, me);
      }
    }
    require(me.device.pinned_bytes() == 0, "used the host");
  });
}

TEST(Staged, ALaterLongerCollectiveFindsLargerSlots) {
  run_device_team(2, staging({{"device_staging_bytes", "4096"}}), [&](DeviceRank& me) {
    for (const std::size_t count : {10, 5000, 20, 900, 5000}) {
      run_case(make_case(Collective::allreduce, Dtype::float32, 2, count, true, false, count), me);
      require(me.device.pinned_bytes() <= 3 * 4096, "a slot is larger than a segment");
    }
  });
}

// ---- Staged: order on the user's stream -----------------------------------------------------------------------------

TEST(Staged, WaitsForWhatTheUserQueuedBeforeAndNothingElse) {
  run_device_team(3, staging(), [&](DeviceRank& me) {
    Ones vector(me, 200);
    require(allreduce(me, vector.memory(), 200));  // they have told each other of their devices
    me.device.hold(me.stream);
    // What the collective must see is queued behind the hold.
    require(me.device.enqueue(me.stream, [&] {
      auto* values = static_cast<int64_t*>(me.device.at(vector.memory()));
      std::fill_n(values, 200, 5);
    }));
    Operation operation;
    operation.spec = {.dtype = Dtype::int64, .count = 200, .device = &me.device, .stream = me.stream};
    operation.buffers = {vector.memory(), vector.memory()};
    me.comm.start(operation);
    for (int i = 0; i < 50; ++i) me.comm.progress();
    require(!operation.completion.done, "did not wait for the stream");
    EXPECT_THAT(me.comm.phase(), AllOf(HasSubstr("staged"), HasSubstr("copying segment 1 of 7 to the host")));
    me.device.let_go();
    require(me.comm.wait(operation.completion, Deadline::after_seconds(60)));
    require(vector.are(15), "wrong sum");
  });
}

TEST(Staged, CollectivesOnSeveralStreamsFollowEachOther) {
  DeviceTeam team = staging();
  team.device.most_delay_us = 100;
  run_device_team(2, team, [&](DeviceRank& me) {
    const Stream other = require(me.device.make_stream());
    Ones a(me, 300), b(me, 300);
    Operation operations[8];
    for (int i = 0; i < 8; ++i) {
      const void* memory = i % 2 == 0 ? a.memory() : b.memory();
      operations[i].spec = {
          .dtype = Dtype::int64, .count = 300, .device = &me.device, .stream = i % 2 == 0 ? me.stream : other};
      operations[i].buffers = {memory, const_cast<void*>(memory)};
      me.comm.start(operations[i]);
    }
    for (Operation& one : operations) require(me.comm.wait(one.completion, Deadline::after_seconds(60)));
    require(me.device.synchronize(other));
    require(a.are(16) && b.are(16), "wrong sum");
    me.device.end_stream(other);
  });
}

TEST(Staged, ABarrierComesAfterTheStreamsWork) {
  run_device_team(2, staging(), [&](DeviceRank& me) {
    std::atomic<bool> ran{false};
    if (me.rank() == 0) {
      me.device.hold(me.stream);
      require(me.device.enqueue(me.stream, [&] { ran = true; }));
    }
    Operation operation;
    operation.spec = {.collective = Collective::barrier, .device = &me.device, .stream = me.stream};
    me.comm.start(operation);
    for (int i = 0; i < 50; ++i) me.comm.progress();
    require(!operation.completion.done, "went through");
    me.device.let_go();
    require(me.comm.wait(operation.completion, Deadline::after_seconds(60)));
    require(me.rank() != 0 || ran, "came before the stream's work");
  });
}

TEST(Staged, ACapturedStreamIsRefusedAndTheGroupLivesOn) {
  run_device_team(2, staging(), [&](DeviceRank& me) {
    Ones vector(me, 50);
    me.device.capture(me.stream, true);
    const Status refused = allreduce(me, vector.memory(), 50);
    EXPECT_EQ(refused.code(), Code::unsupported);
    EXPECT_THAT(refused.text(), AllOf(HasSubstr("captured"), HasSubstr("device_collectives=nccl")));
    me.device.capture(me.stream, false);
    require(allreduce(me, vector.memory(), 50));
    require(vector.are(2), "wrong sum");
  });
}

// ---- Staged: failures
// ------------------------------------------------------------------------------------------------

// Rank 1's device fails somewhere; returns whether it came to that.
bool fails_everywhere(const std::function<void(HostDevice&)>& plan, const std::string& what) {
  std::atomic<int> failed{0};
  run_device_team(3, staging(), [&](DeviceRank& me) {
    Ones vector(me, 300);
    require(barrier(me.comm));
    if (me.rank() == 1) plan(me.device);
    const Status outcome = allreduce(me, vector.memory(), 300);
    // Who copies back only may have been through before.
    const Status later = outcome.ok() ? allreduce(me, vector.memory(), 300) : outcome;
    if (later.ok()) return;
    ++failed;
    // The others hear of it from rank 1, or from one that heard of it before.
    EXPECT_THAT(later.text(), HasSubstr(me.rank() == 1 ? what : "has left; see its own error"));
    EXPECT_FALSE(me.comm.status().ok());
    Operation last;
    last.spec = {.dtype = Dtype::int64, .count = 300, .device = &me.device, .stream = me.stream};
    me.comm.start(last);
    EXPECT_TRUE(last.completion.done);
  });
  EXPECT_TRUE(failed == 0 || failed == 3) << failed;
  return failed > 0;
}

TEST(StagedFailure, EachCallOfTheDeviceThatFailsEndsTheCollectiveOnAllRanks) {
  using Call = HostDevice::Call;
  const Status off(Code::unsupported, "host:1 has fallen off the bus");
  int met = 0;
  for (const Call call : {Call::allocate_pinned, Call::make_stream, Call::make_mark, Call::set, Call::wait,
                          Call::reached, Call::ring, Call::copy, Call::captured}) {
    for (const int nth : {1, 2, 3, 4, 7, 12, 20}) {
      const bool asks = call == Call::allocate_pinned || call == Call::make_stream || call == Call::make_mark;
      const Status why = asks ? Status(Code::resource, "host:1 has fallen short") : off;
      met +=
          fails_everywhere([&](HostDevice& device) { device.fail_call(call, nth, why); }, "host:1 has fallen") ? 1 : 0;
    }
  }
  EXPECT_GT(met, 40);
}

// No bell rings any more: who waits finds it by asking.
TEST(StagedFailure, ADeviceThatFallsOffWhileItWorksIsFoundThoughNoBellRings) {
  int met = 0;
  for (const int nth : {1, 2, 3, 5, 8, 13, 21, 34}) {
    met +=
        fails_everywhere([&](HostDevice& device) { device.fail_work(nth, Status(Code::internal, "host:1 is gone")); },
                         "host:1 is gone")
            ? 1
            : 0;
  }
  EXPECT_GT(met, 5);
}

TEST(StagedFailure, APeerThatLeavesIsNamedAndQueuedCopiesKeepTheirMemory) {
  run_device_team(2, staging(), [&](DeviceRank& me) {
    Ones vector(me, 3000);
    require(barrier(me.comm));
    if (me.rank() == 1) return me.comm.interrupt(Status(Code::aborted, "has had enough"));
    const Status outcome = allreduce(me, vector.memory(), 3000);
    EXPECT_THAT(outcome.text(), HasSubstr("rank 11 (host-1)"));
  });
}

TEST(StagedFailure, AnInterruptEndsACollectiveWhoseCopiesAreHeldUp) {
  run_device_team(2, staging(), [&](DeviceRank& me) {
    Ones vector(me, 300);
    require(allreduce(me, vector.memory(), 300));
    require(barrier(me.comm));
    me.device.hold(me.stream);
    Operation operation;
    operation.spec = {.dtype = Dtype::int64, .count = 300, .device = &me.device, .stream = me.stream};
    operation.buffers = {vector.memory(), vector.memory()};
    me.comm.start(operation);
    me.comm.interrupt(Status(Code::aborted, "stop it"));
    const Status outcome = me.comm.wait(operation.completion, Deadline::after_seconds(60));
    EXPECT_THAT(outcome.text(), HasSubstr("stop it"));
    // What is queued on the user's stream now comes after the copies that were under way.
    std::atomic<bool> ran{false};
    require(me.device.enqueue(me.stream, [&] { ran = true; }));
    require(!ran, "came before them");
    me.device.let_go();
    require(me.device.synchronize(me.stream));
    require(ran, "never came");
  });
}

TEST(StagedFailure, ADeadlineNamesWhomTheHostWaitsFor) {
  run_device_team(2, staging(), [&](DeviceRank& me) {
    Ones vector(me, 300);
    require(allreduce(me, vector.memory(), 300));
    if (me.rank() == 1) {
      // Stays without calling until the other has left.
      Operation wait_for_it;
      while (me.comm.status().ok()) {
        const Status gone = barrier(me.comm);
        if (!gone.ok()) break;
      }
      return;
    }
    Operation operation;
    operation.spec = {.dtype = Dtype::int64, .count = 300, .device = &me.device, .stream = me.stream};
    operation.buffers = {vector.memory(), vector.memory()};
    me.comm.start(operation);
    const Status outcome = me.comm.wait(operation.completion, Deadline::after_ns(50'000'000));
    EXPECT_FALSE(outcome.ok());
  });
}

// ---- Which: staged, or the library
// -----------------------------------------------------------------------------------

TEST(DeviceCollectives, TheLibraryRunsWhatItCanAndStagingTheRest) {
  HostLibrary library;
  run_device_team(4, with_library(library), [&](DeviceRank& me) {
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

TEST(DeviceCollectives, AreStagedWhereThatIsWishedAndNobodyLooksForALibrary) {
  DeviceTeam team = staging({{"device_collectives", "staged"}});
  team.library = [](int) { return []() -> Result<DeviceLibrary*> { return Status(Code::internal, "looked for it"); }; };
  std::mutex mutex;
  std::string log;
  set_log_level(LogLevel::info);
  set_log_sink([&](LogLevel, std::string_view line) {
    std::lock_guard lock(mutex);
    log += line;
  });
  run_device_team(2, team, [&](DeviceRank& me) {
    Ones vector(me, 10);
    require(allreduce(me, vector.memory(), 10));
    EXPECT_EQ(me.comm.runner_of({.count = 5, .device = &me.device}).by, "staged over loopback");
  });
  set_log_sink({});
  set_log_level(LogLevel::warning);
  EXPECT_EQ(log, "");
}

struct Verdict {
  std::vector<std::string> lines;
  std::vector<std::string> outcomes;
  std::string by;
};

// What three ranks log and get, when rank r has the library that `give(r)` gives.
Verdict judge(const std::string& wish, const std::function<Result<DeviceLibrary*>(int)>& give) {
  DeviceTeam team = staging({{"device_collectives", wish}, {"start_timeout_s", "0.05"}});
  team.library = [&](int rank) { return [&give, rank] { return give(rank); }; };
  Verdict verdict;
  std::mutex mutex;
  set_log_sink([&](LogLevel, std::string_view line) {
    std::lock_guard lock(mutex);
    verdict.lines.emplace_back(line);
  });
  run_device_team(3, team, [&](DeviceRank& me) {
    Ones vector(me, 100);
    const Status outcome = allreduce(me, vector.memory(), 100);
    if (outcome.ok()) require(vector.are(3), "wrong sum");
    const Status again = allreduce(me, vector.memory(), 100);
    EXPECT_EQ(outcome.ok(), again.ok());
    const auto by = me.comm.runner_of({.count = 5, .device = &me.device}).by;
    std::lock_guard lock(mutex);
    verdict.outcomes.push_back(outcome.ok() ? "" : outcome.text());
    verdict.by = by;
  });
  set_log_sink({});
  return verdict;
}

TEST(DeviceCollectives, OneRankWithoutTheLibraryStagesAllOfThemAndIsNamed) {
  HostLibrary library;
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 2 ? nullptr : &library; };
  const Verdict verdict = judge("auto", give);
  EXPECT_EQ(verdict.outcomes, std::vector<std::string>(3, ""));
  EXPECT_EQ(verdict.by, "staged over loopback");
  ASSERT_EQ(verdict.lines.size(), 1u);
  EXPECT_THAT(verdict.lines[0], AllOf(HasSubstr("rank 12 (host-2) has no library"), HasSubstr("nvidia-nccl")));
  EXPECT_EQ(library.started(), 0);
}

TEST(DeviceCollectives, WhoInsistsOnTheLibraryIsToldOnAllRanksAlikeWhyItCannotBe) {
  HostLibrary library;
  const auto give = [&](int rank) -> Result<DeviceLibrary*> {
    if (rank == 1) return Status(Code::unsupported, "libhost.so.7 is not there");
    return &library;
  };
  const Verdict verdict = judge("nccl", give);
  for (const std::string& outcome : verdict.outcomes) {
    EXPECT_EQ(outcome, verdict.outcomes[0]);
    EXPECT_THAT(outcome, AllOf(HasSubstr("device_collectives=nccl"), HasSubstr("rank 11 (host-1) has no library")));
  }
  ASSERT_EQ(verdict.lines.size(), 1u);
  EXPECT_THAT(verdict.lines[0], HasSubstr("libhost.so.7 is not there"));
}

TEST(DeviceCollectives, TheLibrarysOwnVerdictIsTakenOnAllRanks) {
  HostLibrary library, newer({.version = 8});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 2 ? &newer : &library; };
  const Verdict staged = judge("auto", give);
  EXPECT_EQ(staged.by, "staged over loopback");
  ASSERT_EQ(staged.lines.size(), 1u);
  EXPECT_THAT(staged.lines[0], HasSubstr("rank 12 has version 8"));
  for (const std::string& outcome : judge("nccl", give).outcomes)
    EXPECT_THAT(outcome, HasSubstr("rank 12 has version 8"));
}

TEST(DeviceCollectives, AnIdThatTheFirstRankCannotMakeIsNobodysWait) {
  HostLibrary library, broken({.no_id = Status(Code::internal, "no socket for an id")});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 0 ? &broken : &library; };
  const Verdict staged = judge("auto", give);
  EXPECT_EQ(staged.outcomes, std::vector<std::string>(3, ""));
  ASSERT_EQ(staged.lines.size(), 1u);
  EXPECT_THAT(staged.lines[0], AllOf(HasSubstr("no socket for an id"), HasSubstr("rank 10 (host-0) made an id")));
  for (const std::string& outcome : judge("nccl", give).outcomes)
    EXPECT_THAT(outcome, HasSubstr("no socket for an id"));
}

TEST(DeviceCollectives, ARankThatCannotJoinIsNobodysWait) {
  HostLibrary library, broken({.no_join = Status(Code::resource, "no memory to join")});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 1 ? &broken : &library; };
  const Verdict staged = judge("auto", give);
  EXPECT_EQ(staged.outcomes, std::vector<std::string>(3, ""));
  ASSERT_EQ(staged.lines.size(), 1u);
  EXPECT_THAT(staged.lines[0], AllOf(HasSubstr("no memory to join"), HasSubstr("rank 11 (host-1) joined")));
  for (const std::string& outcome : judge("nccl", give).outcomes) EXPECT_THAT(outcome, HasSubstr("no memory to join"));
}

TEST(DeviceCollectives, ARankThatNeverJoinsEndsTheOthersAtTheDeadline) {
  HostLibrary library, absent({.absent = true});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 1 ? &absent : &library; };
  const Verdict verdict = judge("auto", give);
  for (const std::string& outcome : verdict.outcomes) {
    EXPECT_THAT(outcome, testing::AnyOf(HasSubstr("2 of 3 ranks have joined in time"), HasSubstr("has left")));
  }
}

TEST(DeviceCollectives, AnUnknownWishIsRefusedBeforeAnythingIsSaid) {
  run_device_team(2, staging({{"device_collectives", "gloo"}}), [&](DeviceRank& me) {
    Ones vector(me, 10);
    EXPECT_THAT(allreduce(me, vector.memory(), 10).text(), HasSubstr("device_collectives=gloo"));
    require(barrier(me.comm));
  });
}

TEST(DeviceCollectives, ASecondDeviceOfARankIsRefusedAndBothAreNamed) {
  HostDevice second({.index = 7});
  run_device_team(2, staging(), [&](DeviceRank& me) {
    Ones vector(me, 10);
    require(allreduce(me, vector.memory(), 10));
    const Status refused = call(me.comm, {.dtype = Dtype::int64, .count = 10, .device = &second}, nullptr, nullptr);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.text(), AllOf(HasSubstr("host:7"), HasSubstr("host:" + std::to_string(me.rank()))));
    require(allreduce(me, vector.memory(), 10));
    require(vector.are(4), "wrong sum");
  });
}

TEST(DeviceCollectives, ARankThatCallsWithMemoryOfTheHostIsAMismatchAndNoWait) {
  for (const bool first : {true, false}) {
    run_device_team(2, staging(), [&](DeviceRank& me) {
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

TEST(DeviceCollectives, ARankThatDiesWhileTheySettleIsNamed) {
  HostLibrary library;
  run_device_team(2, with_library(library), [&](DeviceRank& me) {
    require(barrier(me.comm));
    if (me.rank() == 1) return;
    Ones vector(me, 300);
    const Status outcome = allreduce(me, vector.memory(), 300);
    EXPECT_THAT(outcome.text(), HasSubstr("rank 11 (host-1)"));
  });
}

TEST(DeviceCollectives, CollectivesOfHostAndDeviceAndMessagesTakeTurns) {
  HostLibrary library;
  for (DeviceTeam team : {staging(), with_library(library)}) {
    run_device_team(3, team, [&](DeviceRank& me) {
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

// ---- The library inside hosts, staging between them; and the other way round

DeviceTeam on_two_hosts(HostLibrary& library, const std::string& segment = "256",
                        const std::string& wish = "hierarchical") {
  DeviceTeam team = with_library(library, {{"device_collectives", wish},
                                           {"deterministic", "0"},
                                           {"slice_bytes", segment},
                                           {"device_staging_bytes", segment}});
  team.change = [](Communicator::Parts& parts) {
    parts.shape.hosts = 2;
    parts.shape.ranks_per_host = static_cast<int>(parts.members.size()) / 2;
  };
  return team;
}

TEST(HierarchicalOnDevices, TheLibraryIsInsideHostsAndStagingBetweenThem) {
  for (const int size : {4, 6}) {
    HostLibrary library({.gathers = true});
    DeviceTeam team = on_two_hosts(library);
    team.device.most_delay_us = 50;
    run_device_team(size, team, [&](DeviceRank& me) {
      for (int kind = 0; kind < kCollectiveCount; ++kind) {
        for (const std::size_t count : {0, 1, 5, 300}) {
          for (const bool in_place : {true, false}) {
            run_case(make_case(static_cast<Collective>(kind), Dtype::int32, size, count, false, in_place, 2), me);
          }
        }
      }
      const auto runner = me.comm.runner_of({.count = 5, .device = &me.device});
      EXPECT_EQ(runner.by, "host library 7 inside hosts, staged between");
      const auto other = me.comm.runner_of({.collective = Collective::reduce, .count = 5, .device = &me.device});
      EXPECT_EQ(other.by, "staged over loopback");
    });
    EXPECT_EQ(library.started(), size * 8 * 3);  // a reduce_scatter and an allgather, or a broadcast
  }
}

// The library there sees the ranks of one place on all hosts, and needs no more than an allreduce and a broadcast.
TEST(HierarchicalOnDevices, TheLibraryIsBetweenHostsAndStagingInsideThem) {
  for (const int size : {4, 6}) {
    HostLibrary library;
    DeviceTeam team = on_two_hosts(library, "256", "nccl_between");
    team.device.most_delay_us = 50;
    run_device_team(size, team, [&](DeviceRank& me) {
      for (int kind = 0; kind < kCollectiveCount; ++kind) {
        for (const std::size_t count : {0, 1, 5, 300}) {
          for (const bool in_place : {true, false}) {
            run_case(make_case(static_cast<Collective>(kind), Dtype::int32, size, count, false, in_place, 2), me);
          }
        }
      }
      const auto runner = me.comm.runner_of({.count = 5, .device = &me.device});
      EXPECT_EQ(runner.by, "staged inside hosts, host library 7 between");
      const auto other = me.comm.runner_of({.collective = Collective::reduce, .count = 5, .device = &me.device});
      EXPECT_EQ(other.by, "staged over loopback");
    });
    EXPECT_EQ(library.started(), (size + 2) * 8);  // an allreduce of all, and a broadcast of the root's place on each
  }
}

// Two segments at least, so that both sides are at work at once; and another set sleeps on the communicator's.
class HierarchyOnDevices : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(BothWays, HierarchyOnDevices, testing::Values("hierarchical", "nccl_between"));

TEST_P(HierarchyOnDevices, ALongVectorGoesInSegmentsAndADeviceThatFailsEndsAll) {
  HostLibrary library({.gathers = true});
  DeviceTeam team = on_two_hosts(library, "65536", GetParam());
  std::atomic<int> failed{0};
  run_device_team(4, team, [&](DeviceRank& me) {
    Poller around = require(Poller::make());
    require(around.add(me.comm.wake_fd(), 0));
    Ones vector(me, 300'000);
    require(allreduce(me, vector.memory(), 300'000));
    require(vector.are(4), "wrong sum");
    require(barrier(me.comm));
    if (me.rank() == 2) me.device.fail_call(HostDevice::Call::copy, 5, Status(Code::internal, "host:2 has fallen"));
    Status outcome = allreduce(me, vector.memory(), 300'000);
    if (outcome.ok()) outcome = barrier(me.comm);
    failed += outcome.ok() ? 0 : 1;
    if (me.rank() == 2) {
      EXPECT_THAT(outcome.text(), HasSubstr("host:2 has fallen"));
    }
    around.remove(me.comm.wake_fd());
  });
  EXPECT_EQ(failed, 4);
}

TEST_P(HierarchyOnDevices, WhereHostsAreNotAlikeAllIsStaged) {
  HostLibrary library({.gathers = true});
  DeviceTeam team = on_two_hosts(library, "256", GetParam());
  team.change = {};
  run_device_team(3, team, [&](DeviceRank& me) {
    Ones vector(me, 100);
    require(allreduce(me, vector.memory(), 100));
    require(vector.are(3), "wrong sum");
    EXPECT_EQ(me.comm.runner_of({.count = 5, .device = &me.device}).by, "staged over loopback");
  });
}

// ---- Messages

Message message_of(DeviceRank& me, int peer, bool outgoing, void* data, std::size_t bytes) {
  Message message{.peer = peer, .outgoing = outgoing, .data = static_cast<std::byte*>(data), .bytes = bytes};
  message.device = &me.device;
  message.stream = me.stream;
  return message;
}

// To all, oneself too, in mixed order with messages of the host's memory.
TEST(DeviceMessages, KeepTheirOrderAmongThoseOfTheHost) {
  for (int size = 1; size <= 3; ++size) {
    DeviceTeam team = staging();
    team.device.most_delay_us = 100;
    run_device_team(size, team, [&](DeviceRank& me) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{700}}) {
        const auto sum = static_cast<int64_t>(me.rank());
        std::vector<std::unique_ptr<Ones>> sent, received;
        std::vector<int64_t> on_host(static_cast<std::size_t>(size) * 2, 0);
        std::vector<Message> messages;
        messages.reserve(static_cast<std::size_t>(size) * 4);
        for (int peer = 0; peer < size; ++peer) {
          sent.push_back(std::make_unique<Ones>(me, count));
          received.push_back(std::make_unique<Ones>(me, count));
          int64_t* word = &on_host[static_cast<std::size_t>(peer) * 2];
          word[0] = sum;
          me.device.hold(me.stream);
          require(me.device.enqueue(me.stream, [&me, memory = sent.back()->memory(), count, sum] {
            std::fill_n(static_cast<int64_t*>(me.device.at(memory)), count, 100 + sum);
          }));
          messages.push_back(message_of(me, peer, true, sent.back()->memory(), count * 8));
          messages.push_back({.peer = peer, .outgoing = true, .data = reinterpret_cast<std::byte*>(word), .bytes = 8});
          messages.push_back(message_of(me, peer, false, received.back()->memory(), count * 8));
          messages.push_back({.peer = peer, .data = reinterpret_cast<std::byte*>(word + 1), .bytes = 8});
          for (std::size_t i = messages.size() - 4; i < messages.size(); ++i) me.comm.start(messages[i]);
          me.device.let_go();
        }
        for (Message& one : messages) require(me.comm.wait(one.completion, Deadline::after_seconds(60)));
        for (int peer = 0; peer < size; ++peer) {
          require(on_host[static_cast<std::size_t>(peer) * 2 + 1] == peer, "wrong word");
          require(received[static_cast<std::size_t>(peer)]->are(100 + peer), "wrong message");
        }
      }
    });
  }
}

TEST(DeviceMessages, AreRefusedWhereTheStreamIsCapturedOrTheDeviceIsAnother) {
  HostDevice second({.index = 7});
  run_device_team(1, staging(), [&](DeviceRank& me) {
    Ones vector(me, 10);
    me.device.capture(me.stream, true);
    Message send = message_of(me, 0, true, vector.memory(), 80);
    me.comm.start(send);
    EXPECT_THAT(send.completion.status.text(), HasSubstr("captured"));
    me.device.capture(me.stream, false);
    send.device = &second;
    me.comm.start(send);
    EXPECT_THAT(send.completion.status.text(), AllOf(HasSubstr("host:7"), HasSubstr("host:0")));
    EXPECT_TRUE(me.comm.status().ok());
  });
}

TEST(DeviceMessages, APeerThatLeavesAndADeviceThatFailsEndThem) {
  using Call = HostDevice::Call;
  const Status off(Code::unsupported, "host:1 has fallen");
  int met = 0;
  for (const Call kind : {Call::allocate_pinned, Call::make_stream, Call::make_mark, Call::set, Call::wait,
                          Call::reached, Call::ring, Call::copy, Call::captured}) {
    for (const int nth : {1, 2, 3, 5}) {
      std::atomic<int> failed{0};
      run_device_team(2, staging(), [&](DeviceRank& me) {
        Ones vector(me, 200), other(me, 200);
        require(barrier(me.comm));
        if (me.rank() == 1) me.device.fail_call(kind, nth, off);
        Status outcome;
        for (int round = 0; round < 3 && outcome.ok(); ++round) {
          Message send = message_of(me, 1 - me.rank(), true, vector.memory(), 1600);
          Message recv = message_of(me, 1 - me.rank(), false, other.memory(), 1600);
          me.comm.start(recv);
          me.comm.start(send);
          outcome = me.comm.wait(send.completion, Deadline::after_seconds(60));
          const Status received = me.comm.wait(recv.completion, Deadline::after_seconds(60));
          if (outcome.ok()) outcome = received;
        }
        if (outcome.ok()) return;
        ++failed;
        EXPECT_THAT(outcome.text(), HasSubstr(me.rank() == 1 ? "host:1 has fallen" : "rank 11 (host-1)"));
      });
      EXPECT_TRUE(failed == 0 || failed == 2) << failed;
      met += failed > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(met, 20);
}

// ---- Our own algorithms on devices
// -----------------------------------------------------------------------------------

std::vector<CollectiveCase> cases_for(const Algorithm& algorithm, Dtype dtype, int size) {
  std::vector<CollectiveCase> cases;
  uint64_t seed = 1;
  for (const std::size_t count : {0, 1, 5, 300}) {
    for (const bool even : {true, false}) {
      if ((!even || count == 0) && algorithm.even_chunks_only) continue;  // nothing is no promise
      for (const bool in_place : {true, false}) {
        cases.push_back(make_case(algorithm.collective, dtype, size, count, even, in_place, ++seed));
      }
    }
  }
  return cases;
}

// Integers: any order of folding gives the same bits.
TEST(DeviceSchedules, EveryRowOfTheCatalogIsExactOverLanes) {
  for (int size = 2; size <= 5; ++size) {
    HostLibrary library({.busy_after_group = size % 2 * 2});
    DeviceTeam team = with_library(library, {{"deterministic", "0"}, {"verify_schedules", "1"}});
    team.device.most_delay_us = 20;
    int collectives = 0;
    run_device_team(size, team, [&](DeviceRank& me) {
      for (const Algorithm& algorithm : catalog()) {
        if (!fits(algorithm, size) || algorithm.collective == Collective::barrier) continue;
        for (CollectiveCase c : cases_for(algorithm, Dtype::int32, size)) {
          if (me.rank() == 0) ++collectives;
          run_case(c, me, algorithm.name);
        }
        CollectiveSpec spec{.collective = algorithm.collective, .count = 300, .device = &me.device};
        const std::vector<std::size_t> counts(static_cast<std::size_t>(size), 300);
        spec.counts = spec.recv_counts = counts;
        spec.algorithm = algorithm.name;
        const auto runner = me.comm.runner_of(spec);
        require(runner.by == "host library 7" && runner.algorithm == algorithm.name, "was run by another");
      }
    });
    EXPECT_EQ(library.started(), 0);
    EXPECT_GT(library.groups(), collectives);
  }
}

TEST(DeviceSchedules, RankOrderGivesTheBitsOfTheHost) {
  HostLibrary library;
  run_device_team(4, with_library(library), [&](DeviceRank& me) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float8_e4m3}) {
      for (const Collective kind : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
        for (const bool in_place : {true, false}) {
          CollectiveCase c = make_case(kind, dtype, 4, 300, false, in_place, 5);
          run_case(c, me, "direct");
          c.prescale = 0.5;
          c.postscale = 3;
          run_case(c, me, "direct");
        }
      }
    }
  });
  EXPECT_EQ(library.started(), 0);
}

TEST(DeviceSchedules, AConfiguredAlgorithmRunsWhatItCanRun) {
  HostLibrary library;
  run_device_team(3, with_library(library, {{"algorithm", "ring"}, {"deterministic", "0"}}), [&](DeviceRank& me) {
    run_case(make_case(Collective::allreduce, Dtype::int32, 3, 300, true, false, 1), me);
    require(library.groups() >= 4, "no ring");
    run_case(make_case(Collective::broadcast, Dtype::int32, 3, 300, true, false, 1), me);
    EXPECT_EQ(me.comm.runner_of({.count = 5, .device = &me.device}).algorithm, "ring");
    EXPECT_EQ(me.comm.runner_of({.collective = Collective::broadcast, .count = 5, .device = &me.device}).algorithm, "");
  });
  EXPECT_EQ(library.started(), 3);
}

TEST(DeviceSchedules, WithoutLanesTheHostRunsTheAlgorithm) {
  HostLibrary library({.has_lanes = false});
  run_device_team(3, with_library(library, {{"deterministic", "0"}}), [&](DeviceRank& me) {
    run_case(make_case(Collective::allreduce, Dtype::int32, 3, 300, true, false, 1), me, "ring");
    const auto runner = me.comm.runner_of({.count = 5, .algorithm = "ring", .device = &me.device});
    EXPECT_EQ(runner.by, "staged over loopback");
    EXPECT_EQ(runner.algorithm, "ring");
  });
  EXPECT_EQ(library.groups(), 0);
}

TEST(DeviceSchedules, AnUnknownNameIsRefusedAndTheGroupLivesOn) {
  HostLibrary library;
  run_device_team(2, with_library(library), [&](DeviceRank& me) {
    Ones vector(me, 10);
    CollectiveSpec spec{.dtype = Dtype::int64, .count = 10, .algorithm = "spiral", .device = &me.device};
    spec.stream = me.stream;
    EXPECT_THAT(call(me.comm, spec, vector.memory(), vector.memory()).text(), HasSubstr("spiral"));
    require(allreduce(me, vector.memory(), 10));
    require(vector.are(2), "wrong sum");
  });
}

TEST(DeviceSchedules, SeveralStreamsShareTheScratchInTurn) {
  HostLibrary library;
  DeviceTeam team = with_library(library);
  team.device.most_delay_us = 200;
  run_device_team(3, team, [&](DeviceRank& me) {
    const Stream other = require(me.device.make_stream());
    Ones a(me, 300), b(me, 300);
    Operation operations[6];
    for (int i = 0; i < 6; ++i) {
      void* memory = i % 2 == 0 ? a.memory() : b.memory();
      operations[i].spec = {.dtype = Dtype::int64, .count = 300, .algorithm = "direct", .device = &me.device};
      operations[i].spec.stream = i % 2 == 0 ? me.stream : other;
      operations[i].buffers = {memory, memory};
      me.comm.start(operations[i]);
    }
    for (Operation& one : operations) require(me.comm.wait(one.completion, Deadline::after_seconds(60)));
    require(me.device.synchronize(other));
    require(a.are(27) && b.are(27), "wrong sum");
    me.device.end_stream(other);
  });
}

TEST(DeviceSchedules, ADeviceThatFailsInTheMidstEndsItOnAllRanks) {
  using Call = HostDevice::Call;
  HostLibrary library;
  int met = 0;
  for (const Call call_kind : {Call::allocate, Call::copy, Call::reduce, Call::set, Call::wait}) {
    for (const int nth : {1, 2, 3}) {
      std::atomic<int> failed{0};
      run_device_team(3, with_library(library, {{"deterministic", "0"}}), [&](DeviceRank& me) {
        Ones vector(me, 300);
        require(allreduce(me, vector.memory(), 300));
        require(barrier(me.comm));
        const bool asks = call_kind == Call::allocate;
        if (me.rank() == 1) {
          me.device.fail_call(call_kind, nth, Status(asks ? Code::resource : Code::unsupported, "host:1 has fallen"));
        }
        CollectiveSpec spec{.dtype = Dtype::int64, .count = 300, .algorithm = "ring", .device = &me.device};
        spec.stream = me.stream;
        Status outcome;
        // The others may have queued all of theirs by then; what they call next finds out.
        for (int i = 0; i < 3 && outcome.ok(); ++i) {
          outcome = call(me.comm, spec, vector.memory(), vector.memory());
          if (outcome.ok()) outcome = barrier(me.comm);
        }
        if (outcome.ok()) return;
        ++failed;
        EXPECT_THAT(outcome.text(), HasSubstr(me.rank() == 1 ? "host:1 has fallen" : "has left"));
      });
      EXPECT_TRUE(failed == 0 || failed == 3) << failed;
      met += failed > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(met, 9);
}

}  // namespace
}  // namespace fdl::test
