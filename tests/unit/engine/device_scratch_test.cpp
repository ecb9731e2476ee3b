// Room on devices: memory in which a group packs its vectors, of the library that runs its collectives, and its end.
#include "engine/device/device_scratch.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/mutex.h"
#include "tests/support/device_ranks.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;

DeviceRanks ranks_with(const std::function<Result<DeviceLibrary*>(int rank)>& give,
                       std::map<std::string, std::string> options = {}) {
  options.try_emplace("suspect_after_s", "0.2");
  DeviceRanks team{.config = make_config(options)};
  if (give) team.library = [give](int rank) { return [give, rank] { return give(rank); }; };
  return team;
}
DeviceRanks ranks_with(HostLibrary& library, std::map<std::string, std::string> options = {}) {
  return ranks_with([&library](int) -> Result<DeviceLibrary*> { return &library; }, std::move(options));
}

struct Scratch {
  Status outcome;
  std::size_t bytes = 0;
  void* memory = nullptr;
};

void start_scratch(DeviceRank& me, Operation& operation, std::size_t bytes) {
  operation.spec = {.device = &me.device, .stream = me.stream};
  operation.memory = ScratchRequest{bytes};
  me.comm.start(operation);
}

Scratch ask(DeviceRank& me, std::size_t bytes) {
  Operation operation;
  start_scratch(me, operation, bytes);
  const Status outcome = me.comm.wait(operation.completion, Deadline::after_seconds(60));
  return {outcome, std::get<ScratchRequest>(operation.memory).bytes, std::get<ScratchRequest>(operation.memory).memory};
}

// Queues a sum of ones of all ranks in the room.
void sum_in(DeviceRank& me, void* memory, std::size_t count) {
  const std::vector<int64_t> ones(count, 1);
  me.device.upload(me.stream, memory, ones.data(), count * 8);
  require(call(me.comm, {.dtype = Dtype::int64, .count = count, .device = &me.device, .stream = me.stream}, memory,
               memory));
}

void expect_sum(DeviceRank& me, const void* memory, std::size_t count) {
  std::vector<int64_t> values(count);
  me.device.download(me.stream, values.data(), memory, count * 8);
  EXPECT_EQ(values, std::vector<int64_t>(count, me.size()));
}

// All of a device's memory but so much in one block, while this lasts.
class Filling {
 public:
  Filling(DeviceRank& me, std::size_t left) : me_(me) {
    void* const kept = require(me.device.allocate(left));
    for (std::size_t size = 32 * kMiB; size >= 4096; size /= 2) {
      for (auto one = me.device.allocate(size); one.ok(); one = me.device.allocate(size)) blocks_.push_back(*one);
    }
    me.device.release_now(kept);
  }
  ~Filling() {
    for (void* block : blocks_) me_.device.release_now(block);
  }

 private:
  DeviceRank& me_;
  std::vector<void*> blocks_;
};

// What the ranks, each a thread, warn of in this object's lifetime.
class RankWarnings {
 public:
  RankWarnings() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      MutexLock lock(mutex_);
      if (level == LogLevel::warning) lines_.emplace_back(line);
    });
  }
  ~RankWarnings() { set_log_sink({}); }
  std::vector<std::string> lines() const {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ FDL_GUARDED_BY(mutex_);
};

TEST(DeviceScratch, HasFewSizesAndHoldsWhatIsWanted) {
  EXPECT_EQ(DeviceScratch::size_for(1), 2 * kMiB);
  EXPECT_EQ(DeviceScratch::size_for(2 * kMiB), 2 * kMiB);
  EXPECT_EQ(DeviceScratch::size_for(2 * kMiB + 1), 4 * kMiB);
  EXPECT_EQ(DeviceScratch::size_for(64 * kMiB), 64 * kMiB);
  EXPECT_EQ(DeviceScratch::size_for(64 * kMiB + 1), 128 * kMiB);
  EXPECT_EQ(DeviceScratch::size_for(129 * kMiB), 192 * kMiB);
}

TEST(DeviceScratch, EachSizeButTheLeastHasASmallerOneOfAtMostHalf) {
  EXPECT_EQ(DeviceScratch::size_below(2 * kMiB), 0);
  for (std::size_t size = 4 * kMiB; size <= 1024 * kMiB; size = DeviceScratch::size_for(size + 1)) {
    const std::size_t below = DeviceScratch::size_below(size);
    EXPECT_EQ(DeviceScratch::size_for(below), below) << size;
    EXPECT_LE(below, size / 2);
    EXPECT_GE(below, size / 3);
  }
}

TEST(DeviceScratch, TheFirstOneSettlesWhoRunsCollectivesAndIsKnownToTheLibraryAlike) {
  HostLibrary library;
  run_device_ranks(3, ranks_with(library), [&](DeviceRank& me) {
    const Scratch scratch = ask(me, 1000);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 2 * kMiB);
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), "2097152 alike, 2097152 alike, 2097152 alike");
    require(barrier(me.comm));
    sum_in(me, scratch.memory, 1000);
    expect_sum(me, scratch.memory, 1000);
    EXPECT_EQ(me.comm.runner_of({.count = 5, .device = &me.device}).by, "host library 7");
  });
  EXPECT_EQ(library.known(), "");
  EXPECT_EQ(library.allocated(), 0);
}

// The old one stays, and is known, as long as something that is queued works in it. The library may be at work besides.
TEST(DeviceScratch, ALargerOneReplacesItOnceWhatUsedItHasRun) {
  HostLibrary library({.busy_dismissals = 3});
  run_device_ranks(2, ranks_with(library), [&](DeviceRank& me) {
    const Scratch scratch = ask(me, 1000);
    require(scratch.outcome);
    sum_in(me, scratch.memory, 1000);
    me.device.hold(me.stream);
    Operation larger;
    start_scratch(me, larger, 3 * kMiB);
    for (int i = 0; i < 3; ++i) {
      me.comm.progress();
      me.comm.sleep_until_ready(Deadline::after_seconds(0.01));
    }
    EXPECT_FALSE(larger.completion.done);
    EXPECT_THAT(me.comm.phase(), HasSubstr("waiting until the scratch buffer is free"));
    EXPECT_THAT(library.known(), HasSubstr("2097152 alike"));
    me.device.let_go();
    require(me.comm.wait(larger.completion, Deadline::after_seconds(60)));
    EXPECT_EQ(std::get<ScratchRequest>(larger.memory).bytes, 4 * kMiB);
    sum_in(me, std::get<ScratchRequest>(larger.memory).memory, 400'000);
    expect_sum(me, std::get<ScratchRequest>(larger.memory).memory, 400'000);
    require(barrier(me.comm));
    EXPECT_EQ(library.allocated(), 2);
    require(barrier(me.comm));
  });
  EXPECT_EQ(library.known(), "");
}

// What was used up between the last question and the sleep is not slept through.
TEST(DeviceScratch, DoesNotSleepOnceWhatUsedItHasRun) {
  HostDevice device;
  HostLibrary library({.busy_dismissals = 1});
  const std::vector<Member> alone(1);
  const auto id = require(library.make_id());
  auto joined = require(library.join(id, 0, alone, device, Deadline::never()));
  const Stream stream = require(device.make_stream());
  auto scratch = require(DeviceScratch::make(device));
  scratch->belong_to(library, *joined, true);
  require(scratch->take(1000));
  require(scratch->keep(scratch->bytes(), true));
  device.hold(stream);
  require(scratch->begin(stream));
  EXPECT_FALSE(require(scratch->emptied()));
  EXPECT_TRUE(scratch->prepare_to_sleep());
  device.let_go();
  require(wait_readable(scratch->fd(), Deadline::after_seconds(60)), "the bell rings");
  EXPECT_FALSE(scratch->prepare_to_sleep());
  EXPECT_FALSE(wait_readable(scratch->fd(), Deadline::after_seconds(0))) << "and does not ring for ever";
  EXPECT_FALSE(require(scratch->emptied())) << "the library is at work";
  EXPECT_TRUE(scratch->prepare_to_sleep());
  EXPECT_TRUE(require(scratch->emptied()));
  EXPECT_EQ(library.allocated(), 0);
  scratch.reset();
  joined.reset();
  device.end_stream(stream);
}

TEST(DeviceScratch, ARankWithoutMemoryTakesOtherAndNobodyIsAlike) {
  HostLibrary library;
  HostLibrary poor({.no_memory = Status(Code::resource, "host library: out of memory")});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 1 ? &poor : &library; };
  run_device_ranks(3, ranks_with(give), [&](DeviceRank& me) {
    const Scratch scratch = ask(me, 1000);
    require(scratch.outcome);
    sum_in(me, scratch.memory, 1000);
    expect_sum(me, scratch.memory, 1000);
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), "2097152 here, 2097152 here");
    EXPECT_EQ(poor.known(), "");
    require(barrier(me.comm));
    const Scratch larger = ask(me, 3 * kMiB);  // what is no library's memory goes too
    require(larger.outcome);
    sum_in(me, larger.memory, 300'000);
    expect_sum(me, larger.memory, 300'000);
  });
}

TEST(DeviceScratch, WhereCollectivesAreStagedItIsAnyMemory) {
  HostLibrary library;
  run_device_ranks(2, ranks_with(library, {{"device_collectives", "staged"}}), [&](DeviceRank& me) {
    for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB}) {
      const Scratch scratch = ask(me, bytes);
      require(scratch.outcome);
      sum_in(me, scratch.memory, bytes / 8);
      expect_sum(me, scratch.memory, bytes / 8);
    }
  });
  EXPECT_EQ(library.allocated(), 0);
}

// There may be no room for both.
TEST(DeviceScratch, WhereCollectivesAreStagedTheOldOneIsGivenBackFirstTooOnceWhatUsedItHasRun) {
  run_device_ranks(2, ranks_with({}), [&](DeviceRank& me) {
    require(ask(me, 1000).outcome);
    me.device.hold(me.stream);
    Operation larger;
    start_scratch(me, larger, 3 * kMiB);
    for (int i = 0; i < 3; ++i) {
      me.comm.progress();
      me.comm.sleep_until_ready(Deadline::after_seconds(0.01));
    }
    EXPECT_FALSE(larger.completion.done);
    me.device.let_go();
    require(me.comm.wait(larger.completion, Deadline::after_seconds(60)));
    EXPECT_EQ(std::get<ScratchRequest>(larger.memory).bytes, 4 * kMiB);
  });
}

// ---- Where a device has no room for as much

// How the collectives of a team are run, and how its ranks' memory is known then.
struct Way {
  const char* name;
  const char* wish;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }
class SmallerScratch : public testing::TestWithParam<Way> {
 protected:
  bool is_librarys() const { return std::string_view(GetParam().wish) == "auto"; }
  DeviceRanks team() { return ranks_with(library, {{"device_collectives", GetParam().wish}}); }
  std::string known(int ranks, std::size_t bytes, const char* how = "alike") const {
    std::string text;
    for (int i = 0; i < ranks; ++i) text += fmt::format("{}{} {}", i > 0 ? ", " : "", bytes, how);
    return is_librarys() ? text : "";
  }
  void TearDown() override {
    EXPECT_EQ(library.known(), "");
    EXPECT_EQ(library.allocated(), 0);
  }

  HostLibrary library;
};
INSTANTIATE_TEST_SUITE_P(, SmallerScratch, testing::Values(Way{"ByALibrary", "auto"}, Way{"Staged", "staged"}),
                         [](const auto& each) { return each.param.name; });

TEST_P(SmallerScratch, IsAsLargeOnAllRanksAsOnTheOneThatHasLeast) {
  RankWarnings warnings;
  run_device_ranks(3, team(), [&](DeviceRank& me) {
    {
      const std::size_t left[] = {60 * kMiB, 5 * kMiB, 9 * kMiB};
      const Filling filling(me, left[me.rank()]);
      const Scratch scratch = ask(me, 16 * kMiB);
      require(scratch.outcome);
      EXPECT_EQ(scratch.bytes, 4 * kMiB);
      require(barrier(me.comm));
      EXPECT_EQ(library.known(), known(3, 4 * kMiB));
      EXPECT_EQ(library.allocated(), is_librarys() ? 3 : 0) << "what was too much is given back";
      require(barrier(me.comm));
      EXPECT_EQ(me.device.pinned_bytes(), 0);
      sum_in(me, scratch.memory, 4 * kMiB / 8);
      expect_sum(me, scratch.memory, 4 * kMiB / 8);
    }
    // Asked for once more it is looked for once more.
    const Scratch scratch = ask(me, 16 * kMiB);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 16 * kMiB);
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), known(3, 16 * kMiB));
    require(barrier(me.comm));
  });
  // One line from each that lacks memory, none from the one that does not.
  ASSERT_EQ(warnings.lines().size(), 2);
  for (const std::string& line : warnings.lines()) {
    EXPECT_TRUE(line.starts_with("rank 11 ") || line.starts_with("rank 12 ")) << line;
    EXPECT_THAT(line, HasSubstr(line.starts_with("rank 11 ") ? "host:1 (memory)" : "host:2 (memory)"));
    EXPECT_THAT(line, HasSubstr("has 4194304 bytes instead of 16777216"));
    EXPECT_THAT(line, HasSubstr("free memory of the device, or lower FARANDOLE_FUSION_BYTES"));
  }
}

TEST_P(SmallerScratch, IsTheLeastWhereNoRankHasMore) {
  RankWarnings warnings;
  run_device_ranks(2, team(), [&](DeviceRank& me) {
    const Filling filling(me, 3 * kMiB);
    const Scratch scratch = ask(me, 30 * kMiB);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 2 * kMiB);
    sum_in(me, scratch.memory, 1000);
    expect_sum(me, scratch.memory, 1000);
  });
  EXPECT_EQ(warnings.lines().size(), 2);
}

TEST_P(SmallerScratch, IsTheHostsWhereThereIsNotEvenTheLeastAndTheOthersHaveTheirs) {
  RankWarnings warnings;
  run_device_ranks(3, team(), [&](DeviceRank& me) {
    const std::size_t left[] = {60 * kMiB, kMiB, 9 * kMiB};
    const Filling filling(me, left[me.rank()]);
    const Scratch scratch = ask(me, 16 * kMiB);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 8 * kMiB) << "of those that have any";
    EXPECT_EQ(me.device.pinned_bytes(), me.rank() == 1 ? 8 * kMiB : 0);
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), known(2, 8 * kMiB, "here")) << "not alike, where one has none";
    require(barrier(me.comm));
    sum_in(me, scratch.memory, 1000);
    expect_sum(me, scratch.memory, 1000);
  });
  ASSERT_EQ(warnings.lines().size(), 2);
  for (const std::string& line : warnings.lines()) {
    EXPECT_EQ(line.starts_with("rank 11 "), line.find("is in memory of the host, which is slow") != line.npos) << line;
    EXPECT_THAT(line, HasSubstr("free memory of the device, or lower FARANDOLE_FUSION_BYTES"));
  }
}

TEST_P(SmallerScratch, IsWhatWasWantedInTheHostsMemoryWhereNoRankHasAny) {
  RankWarnings warnings;
  run_device_ranks(2, team(), [&](DeviceRank& me) {
    const Filling filling(me, kMiB);
    const Scratch scratch = ask(me, 3 * kMiB);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 4 * kMiB);
    EXPECT_EQ(me.device.pinned_bytes(), 4 * kMiB);
    sum_in(me, scratch.memory, 1000);
    expect_sum(me, scratch.memory, 1000);
  });
  EXPECT_EQ(warnings.lines().size(), 2);
  EXPECT_EQ(library.known(), "");
}

// Who lets more of the library's go to take as much as another may find that somebody was quicker. Of other memory a
// part is taken then.
TEST_P(SmallerScratch, IsAgreedUponUntilAllHaveAsMuch) {
  RankWarnings warnings;
  run_device_ranks(2, team(), [&](DeviceRank& me) {
    const Filling filling(me, me.rank() == 0 ? 60 * kMiB : 9 * kMiB);
    const Status stolen(Code::resource, "host:0: somebody was quicker");
    if (me.rank() == 0) me.device.fail_call(HostDevice::Call::allocate, 2, stolen, is_librarys() ? 1 : 0);
    const Scratch scratch = ask(me, 16 * kMiB);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, is_librarys() ? 4 * kMiB : 8 * kMiB);
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), known(2, 4 * kMiB));
    EXPECT_EQ(library.allocated(), is_librarys() ? 2 : 0);
    require(barrier(me.comm));
    sum_in(me, scratch.memory, scratch.bytes / 8);
    expect_sum(me, scratch.memory, scratch.bytes / 8);
  });
  EXPECT_EQ(warnings.lines().size(), is_librarys() ? 2 : 1);
}

TEST_P(SmallerScratch, IsFoundByOneRankAlone) {
  RankWarnings warnings;
  run_device_ranks(1, team(), [&](DeviceRank& me) {
    const Filling filling(me, 5 * kMiB);
    EXPECT_EQ(ask(me, 30 * kMiB).bytes, 4 * kMiB);
    EXPECT_EQ(me.device.pinned_bytes(), 0);
  });
  EXPECT_EQ(warnings.lines().size(), 1);
}

TEST(DeviceScratch, IsTheDevicesAloneInAGroupOfOne) {
  HostLibrary library;
  run_device_ranks(1, ranks_with(library), [&](DeviceRank& me) {
    const Scratch scratch = ask(me, 1000);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 2 * kMiB);
  });
}

// ---- Bad days

TEST(DeviceScratchFailure, AnInterruptEndsAGrowthAndQueuedWorkKeepsItsMemory) {
  HostLibrary library;
  run_device_ranks(2, ranks_with(library), [&](DeviceRank& me) {
    const Scratch scratch = ask(me, 1000);
    require(scratch.outcome);
    me.device.hold(me.stream);
    Operation larger;
    start_scratch(me, larger, 3 * kMiB);
    me.comm.progress();
    EXPECT_FALSE(larger.completion.done);
    me.comm.interrupt(Status(Code::peer_lost, "rank 7 was killed"));
    me.device.let_go();
    me.comm.progress();
    EXPECT_TRUE(larger.completion.done);
    EXPECT_THAT(larger.completion.status.text(), HasSubstr("rank 7 was killed"));
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(DeviceScratchFailure, APeerThatLeavesWhileTheyTellEachOtherIsNamed) {
  HostLibrary library;
  run_device_ranks(2, ranks_with(library), [&](DeviceRank& me) {
    require(ask(me, 1000).outcome);
    if (me.rank() == 1) return;
    const Scratch scratch = ask(me, 3 * kMiB);
    EXPECT_FALSE(scratch.outcome.ok());
    EXPECT_THAT(scratch.outcome.text(), HasSubstr("rank 1"));
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(DeviceScratchFailure, EachCallOfTheDeviceThatFailsEndsItForAll) {
  using Call = HostDevice::Call;
  for (const Call failing : {Call::set, Call::ring, Call::reached}) {
    HostLibrary library;
    run_device_ranks(2, ranks_with(library), [&](DeviceRank& me) {
      require(ask(me, 1000).outcome);
      if (me.rank() == 1) me.device.fail_call(failing, 1, Status(Code::unsupported, "host:1 has fallen off the bus"));
      const Scratch scratch = ask(me, 3 * kMiB);
      EXPECT_FALSE(scratch.outcome.ok());
      EXPECT_THAT(scratch.outcome.text(), HasSubstr("rank 1"));
      EXPECT_THAT(scratch.outcome.text(), HasSubstr(me.rank() == 1 ? "fallen off the bus" : "rank 1"));
      EXPECT_FALSE(me.comm.status().ok());
    });
  }
}

TEST_P(SmallerScratch, ADeviceThatFailsAsItIsAskedEndsItForAll) {
  run_device_ranks(2, team(), [&](DeviceRank& me) {
    require(ask(me, 1000).outcome);
    const Status lost(Code::unsupported, "host:1 is lost");
    if (me.rank() == 1) me.device.fail_call(HostDevice::Call::allocate, 1, lost, 100);
    const Scratch scratch = ask(me, 3 * kMiB);
    EXPECT_FALSE(scratch.outcome.ok());
    EXPECT_THAT(scratch.outcome.text(), HasSubstr("rank 1"));
    EXPECT_FALSE(me.comm.status().ok());
  });
}

TEST_P(SmallerScratch, WhereTheHostHasNoneEitherItEndsForAll) {
  run_device_ranks(2, team(), [&](DeviceRank& me) {
    const Filling filling(me, me.rank() == 1 ? 1000 : 60 * kMiB);
    if (me.rank() == 1) {
      me.device.fail_call(HostDevice::Call::allocate_pinned, 1, Status(Code::resource, "no pinned memory is left"));
    }
    const Scratch scratch = ask(me, 30 * kMiB);
    const Status later = scratch.outcome.ok() ? barrier(me.comm) : scratch.outcome;
    EXPECT_THAT(later.text(), HasSubstr("rank 1"));
    EXPECT_EQ(scratch.outcome.ok(), me.rank() == 0) << "the others hear of it with what comes next";
    EXPECT_THAT(later.text(), HasSubstr(me.rank() == 1 ? "lower FARANDOLE_FUSION_BYTES" : "rank 1"));
  });
}

// What is queued fails when the host has long been done with it.
TEST(DeviceScratchFailure, WhatTheLibraryMeetsBetweenCollectivesEndsTheGroup) {
  HostLibrary library;
  run_device_ranks(2, ranks_with(library), [&](DeviceRank& me) {
    const Scratch scratch = ask(me, 1000);
    require(scratch.outcome);
    sum_in(me, scratch.memory, 10);
    expect_sum(me, scratch.memory, 10);
    require(barrier(me.comm));
    if (me.rank() == 1) library.break_down(Status(Code::transport, "host library: the network is gone"));
    const Deadline deadline = Deadline::after_seconds(30);
    while (me.comm.status().ok()) {
      require(!deadline.passed(), "nobody noticed");
      if (!me.comm.progress()) me.comm.sleep_until_ready(Deadline::after_seconds(0.01));
    }
    EXPECT_TRUE(me.comm.has_failed());
    EXPECT_THAT(me.comm.status().text(), HasSubstr("rank "));
  });
}

}  // namespace
}  // namespace fdl::test
