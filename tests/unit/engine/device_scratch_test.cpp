// Tests of scratch buffers on devices: their sizes, their registration with the library, growth and failures.
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
  DeviceRanks participants{.config = make_config(options)};
  if (give) participants.library = [give](int rank) { return [give, rank] { return give(rank); }; };
  return participants;
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

Scratch request(DeviceRank& me, std::size_t bytes) {
  Operation operation;
  start_scratch(me, operation, bytes);
  const Status outcome = me.comm.wait(operation.completion, Deadline::after_seconds(60));
  return {outcome, std::get<ScratchRequest>(operation.memory).bytes, std::get<ScratchRequest>(operation.memory).memory};
}

// Queues a sum of ones of all ranks in the scratch buffer.
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

// Occupies all memory of a device except one block of `left` bytes.
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

// Collects the warnings of all ranks (which are threads) during this object's lifetime.
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

TEST(DeviceScratch, HasFewSizesAndIsLargeEnough) {
  EXPECT_EQ(DeviceScratch::size_for(1), 2 * kMiB);
  EXPECT_EQ(DeviceScratch::size_for(2 * kMiB), 2 * kMiB);
  EXPECT_EQ(DeviceScratch::size_for(2 * kMiB + 1), 4 * kMiB);
  EXPECT_EQ(DeviceScratch::size_for(64 * kMiB), 64 * kMiB);
  EXPECT_EQ(DeviceScratch::size_for(64 * kMiB + 1), 128 * kMiB);
  EXPECT_EQ(DeviceScratch::size_for(129 * kMiB), 192 * kMiB);
}

TEST(DeviceScratch, EachSizeExceptTheLeastHasASmallerOneOfAtMostHalf) {
  EXPECT_EQ(DeviceScratch::size_below(2 * kMiB), 0);
  for (std::size_t size = 4 * kMiB; size <= 1024 * kMiB; size = DeviceScratch::size_for(size + 1)) {
    const std::size_t below = DeviceScratch::size_below(size);
    EXPECT_EQ(DeviceScratch::size_for(below), below) << size;
    EXPECT_LE(below, size / 2);
    EXPECT_GE(below, size / 3);
  }
}

TEST(DeviceScratch, FirstRequestNegotiatesTheBackendAndRegistersTheBufferAlike) {
  HostLibrary library;
  run_device_ranks(3, ranks_with(library), [&](DeviceRank& me) {
    const Scratch scratch = request(me, 1000);
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

// The old buffer stays registered while queued work uses it. Unregistering may take the library several attempts.
TEST(DeviceScratch, LargerBufferReplacesItOnceQueuedWorkHasRun) {
  HostLibrary library({.busy_dismissals = 3});
  run_device_ranks(2, ranks_with(library), [&](DeviceRank& me) {
    const Scratch scratch = request(me, 1000);
    require(scratch.outcome);
    sum_in(me, scratch.memory, 1000);
    me.device.pause(me.stream);
    Operation larger;
    start_scratch(me, larger, 3 * kMiB);
    for (int i = 0; i < 3; ++i) {
      me.comm.progress();
      me.comm.sleep_until_ready(Deadline::after_seconds(0.01));
    }
    EXPECT_FALSE(larger.completion.done);
    EXPECT_THAT(me.comm.phase(), HasSubstr("waiting until the scratch buffer is free"));
    EXPECT_THAT(library.known(), HasSubstr("2097152 alike"));
    me.device.resume();
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

// Work that finishes between the last emptied() and the sleep must prevent the sleep.
TEST(DeviceScratch, DoesNotSleepOnceQueuedWorkHasRun) {
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
  device.pause(stream);
  require(scratch->begin(stream));
  EXPECT_FALSE(require(scratch->emptied()));
  EXPECT_TRUE(scratch->prepare_to_sleep());
  device.resume();
  require(wait_readable(scratch->fd(), Deadline::after_seconds(60)), "the notifier did not ring");
  EXPECT_FALSE(scratch->prepare_to_sleep());
  EXPECT_FALSE(wait_readable(scratch->fd(), Deadline::after_seconds(0))) << "prepare_to_sleep() clears the notifier";
  EXPECT_FALSE(require(scratch->emptied())) << "the library is at work";
  EXPECT_TRUE(scratch->prepare_to_sleep());
  EXPECT_TRUE(require(scratch->emptied()));
  EXPECT_EQ(library.allocated(), 1) << "take() releases it, in a thread that may wait";
  scratch.reset();
  EXPECT_EQ(library.allocated(), 0);
  joined.reset();
  device.end_stream(stream);
}

TEST(DeviceScratch, RankWithoutLibraryMemoryUsesOtherMemoryAndNoBufferIsAlike) {
  HostLibrary library;
  HostLibrary poor({.no_memory = Status(Code::resource, "host library: out of memory")});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 1 ? &poor : &library; };
  run_device_ranks(3, ranks_with(give), [&](DeviceRank& me) {
    const Scratch scratch = request(me, 1000);
    require(scratch.outcome);
    sum_in(me, scratch.memory, 1000);
    expect_sum(me, scratch.memory, 1000);
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), "2097152 here, 2097152 here");
    EXPECT_EQ(poor.known(), "");
    require(barrier(me.comm));
    const Scratch larger = request(me, 3 * kMiB);  // other memory is replaced as well
    require(larger.outcome);
    sum_in(me, larger.memory, 300'000);
    expect_sum(me, larger.memory, 300'000);
  });
}

TEST(DeviceScratch, UsesDeviceMemoryIfCollectivesAreStaged) {
  HostLibrary library;
  run_device_ranks(2, ranks_with(library, {{"device_collectives", "staged"}}), [&](DeviceRank& me) {
    for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB}) {
      const Scratch scratch = request(me, bytes);
      require(scratch.outcome);
      sum_in(me, scratch.memory, bytes / 8);
      expect_sum(me, scratch.memory, bytes / 8);
    }
  });
  EXPECT_EQ(library.allocated(), 0);
}

// The device may not have memory for both buffers.
TEST(DeviceScratch, ReleasesTheOldBufferFirstIfCollectivesAreStaged) {
  run_device_ranks(2, ranks_with({}), [&](DeviceRank& me) {
    require(request(me, 1000).outcome);
    me.device.pause(me.stream);
    Operation larger;
    start_scratch(me, larger, 3 * kMiB);
    for (int i = 0; i < 3; ++i) {
      me.comm.progress();
      me.comm.sleep_until_ready(Deadline::after_seconds(0.01));
    }
    EXPECT_FALSE(larger.completion.done);
    me.device.resume();
    require(me.comm.wait(larger.completion, Deadline::after_seconds(60)));
    EXPECT_EQ(std::get<ScratchRequest>(larger.memory).bytes, 4 * kMiB);
  });
}

// ---- Devices with less memory than requested ----

// The backend that runs collectives; it determines whether the ranks' memory is registered.
struct Way {
  const char* name;
  const char* setting;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }
class SmallerScratch : public testing::TestWithParam<Way> {
 protected:
  bool is_librarys() const { return std::string_view(GetParam().setting) == "auto"; }
  DeviceRanks participants() { return ranks_with(library, {{"device_collectives", GetParam().setting}}); }
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

TEST_P(SmallerScratch, HasTheLeastSizeOfAllRanks) {
  RankWarnings warnings;
  run_device_ranks(3, participants(), [&](DeviceRank& me) {
    {
      const std::size_t left[] = {60 * kMiB, 5 * kMiB, 9 * kMiB};
      const Filling filling(me, left[me.rank()]);
      const Scratch scratch = request(me, 16 * kMiB);
      require(scratch.outcome);
      EXPECT_EQ(scratch.bytes, 4 * kMiB);
      require(barrier(me.comm));
      EXPECT_EQ(library.known(), known(3, 4 * kMiB));
      EXPECT_EQ(library.allocated(), is_librarys() ? 3 : 0) << "memory beyond the agreed size is released";
      require(barrier(me.comm));
      EXPECT_EQ(me.device.pinned_bytes(), 0);
      sum_in(me, scratch.memory, 4 * kMiB / 8);
      expect_sum(me, scratch.memory, 4 * kMiB / 8);
    }
    // A repeated request tries to allocate again.
    const Scratch scratch = request(me, 16 * kMiB);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 16 * kMiB);
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), known(3, 16 * kMiB));
    require(barrier(me.comm));
  });
  // Each rank that lacks memory logs one line; the other rank logs none.
  ASSERT_EQ(warnings.lines().size(), 2);
  for (const std::string& line : warnings.lines()) {
    EXPECT_TRUE(line.starts_with("rank 11 ") || line.starts_with("rank 12 ")) << line;
    EXPECT_THAT(line, HasSubstr(line.starts_with("rank 11 ") ? "host:1 (memory)" : "host:2 (memory)"));
    EXPECT_THAT(line, HasSubstr("has 4194304 bytes instead of 16777216"));
    EXPECT_THAT(line, HasSubstr("free memory of the device, or lower FARANDOLE_FUSION_BYTES"));
  }
}

TEST_P(SmallerScratch, HasTheLeastSizeIfNoRankHasMore) {
  RankWarnings warnings;
  run_device_ranks(2, participants(), [&](DeviceRank& me) {
    const Filling filling(me, 3 * kMiB);
    const Scratch scratch = request(me, 30 * kMiB);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 2 * kMiB);
    sum_in(me, scratch.memory, 1000);
    expect_sum(me, scratch.memory, 1000);
  });
  EXPECT_EQ(warnings.lines().size(), 2);
}

TEST_P(SmallerScratch, UsesHostMemoryOnlyOnTheRankWithoutDeviceMemory) {
  RankWarnings warnings;
  run_device_ranks(3, participants(), [&](DeviceRank& me) {
    const std::size_t left[] = {60 * kMiB, kMiB, 9 * kMiB};
    const Filling filling(me, left[me.rank()]);
    const Scratch scratch = request(me, 16 * kMiB);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 8 * kMiB) << "the least size of the ranks that have any";
    EXPECT_EQ(me.device.pinned_bytes(), me.rank() == 1 ? 8 * kMiB : 0);
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), known(2, 8 * kMiB, "here")) << "registered, but not alike, because one rank has none";
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

TEST_P(SmallerScratch, UsesHostMemoryOfTheRequestedSizeIfNoRankHasDeviceMemory) {
  RankWarnings warnings;
  run_device_ranks(2, participants(), [&](DeviceRank& me) {
    const Filling filling(me, kMiB);
    const Scratch scratch = request(me, 3 * kMiB);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 4 * kMiB);
    EXPECT_EQ(me.device.pinned_bytes(), 4 * kMiB);
    sum_in(me, scratch.memory, 1000);
    expect_sum(me, scratch.memory, 1000);
  });
  EXPECT_EQ(warnings.lines().size(), 2);
  EXPECT_EQ(library.known(), "");
}

// A rank that releases the library's memory to allocate a smaller block may fail, because another process was quicker.
// It then uses a part of other memory.
TEST_P(SmallerScratch, ShrinksUntilAllRanksHaveTheSameSize) {
  RankWarnings warnings;
  run_device_ranks(2, participants(), [&](DeviceRank& me) {
    const Filling filling(me, me.rank() == 0 ? 60 * kMiB : 9 * kMiB);
    const Status stolen(Code::resource, "host:0: another process was quicker");
    if (me.rank() == 0) me.device.fail_call(HostDevice::Call::allocate, 2, stolen, is_librarys() ? 1 : 0);
    const Scratch scratch = request(me, 16 * kMiB);
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

TEST_P(SmallerScratch, ShrinksInAGroupOfOne) {
  RankWarnings warnings;
  run_device_ranks(1, participants(), [&](DeviceRank& me) {
    const Filling filling(me, 5 * kMiB);
    EXPECT_EQ(request(me, 30 * kMiB).bytes, 4 * kMiB);
    EXPECT_EQ(me.device.pinned_bytes(), 0);
  });
  EXPECT_EQ(warnings.lines().size(), 1);
}

TEST(DeviceScratch, UsesDeviceMemoryInAGroupOfOne) {
  HostLibrary library;
  run_device_ranks(1, ranks_with(library), [&](DeviceRank& me) {
    const Scratch scratch = request(me, 1000);
    require(scratch.outcome);
    EXPECT_EQ(scratch.bytes, 2 * kMiB);
  });
}

// ---- Failures ----

TEST(DeviceScratchFailure, InterruptEndsAGrowthAndQueuedWorkKeepsItsMemory) {
  HostLibrary library;
  run_device_ranks(2, ranks_with(library), [&](DeviceRank& me) {
    const Scratch scratch = request(me, 1000);
    require(scratch.outcome);
    me.device.pause(me.stream);
    Operation larger;
    start_scratch(me, larger, 3 * kMiB);
    me.comm.progress();
    EXPECT_FALSE(larger.completion.done);
    me.comm.interrupt(Status(Code::peer_lost, "rank 7 was killed"));
    me.device.resume();
    me.comm.progress();
    EXPECT_TRUE(larger.completion.done);
    EXPECT_THAT(larger.completion.status.text(), HasSubstr("rank 7 was killed"));
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(DeviceScratchFailure, PeerThatLeavesDuringTheExchangeIsNamed) {
  HostLibrary library;
  run_device_ranks(2, ranks_with(library), [&](DeviceRank& me) {
    require(request(me, 1000).outcome);
    if (me.rank() == 1) return;
    const Scratch scratch = request(me, 3 * kMiB);
    EXPECT_FALSE(scratch.outcome.ok());
    EXPECT_THAT(scratch.outcome.text(), HasSubstr("rank 1"));
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(DeviceScratchFailure, AnyFailingDeviceCallEndsTheRequestOnAllRanks) {
  using Call = HostDevice::Call;
  for (const Call failing : {Call::set, Call::ring, Call::reached}) {
    HostLibrary library;
    run_device_ranks(2, ranks_with(library), [&](DeviceRank& me) {
      require(request(me, 1000).outcome);
      if (me.rank() == 1) me.device.fail_call(failing, 1, Status(Code::unsupported, "host:1 has fallen off the bus"));
      const Scratch scratch = request(me, 3 * kMiB);
      EXPECT_FALSE(scratch.outcome.ok());
      EXPECT_THAT(scratch.outcome.text(), HasSubstr("rank 1"));
      EXPECT_THAT(scratch.outcome.text(), HasSubstr(me.rank() == 1 ? "fallen off the bus" : "rank 1"));
      EXPECT_FALSE(me.comm.status().ok());
    });
  }
}

TEST_P(SmallerScratch, FailingDeviceEndsTheRequestOnAllRanks) {
  run_device_ranks(2, participants(), [&](DeviceRank& me) {
    require(request(me, 1000).outcome);
    const Status lost(Code::unsupported, "host:1 is lost");
    if (me.rank() == 1) me.device.fail_call(HostDevice::Call::allocate, 1, lost, 100);
    const Scratch scratch = request(me, 3 * kMiB);
    EXPECT_FALSE(scratch.outcome.ok());
    EXPECT_THAT(scratch.outcome.text(), HasSubstr("rank 1"));
    EXPECT_FALSE(me.comm.status().ok());
  });
}

TEST_P(SmallerScratch, LackOfPinnedMemoryEndsTheRequestOnAllRanks) {
  run_device_ranks(2, participants(), [&](DeviceRank& me) {
    const Filling filling(me, me.rank() == 1 ? 1000 : 60 * kMiB);
    if (me.rank() == 1) {
      me.device.fail_call(HostDevice::Call::allocate_pinned, 1, Status(Code::resource, "no pinned memory is left"));
    }
    const Scratch scratch = request(me, 30 * kMiB);
    const Status later = scratch.outcome.ok() ? barrier(me.comm) : scratch.outcome;
    EXPECT_THAT(later.text(), HasSubstr("rank 1"));
    EXPECT_EQ(scratch.outcome.ok(), me.rank() == 0) << "the next call reports the failure to the other rank";
    EXPECT_THAT(later.text(), HasSubstr(me.rank() == 1 ? "lower FARANDOLE_FUSION_BYTES" : "rank 1"));
  });
}

// Queued work fails after the host has finished the call.
TEST(DeviceScratchFailure, LibraryFailureBetweenCollectivesEndsTheGroup) {
  HostLibrary library;
  run_device_ranks(2, ranks_with(library), [&](DeviceRank& me) {
    const Scratch scratch = request(me, 1000);
    require(scratch.outcome);
    sum_in(me, scratch.memory, 10);
    expect_sum(me, scratch.memory, 10);
    require(barrier(me.comm));
    if (me.rank() == 1) library.break_down(Status(Code::transport, "host library: the network is gone"));
    const Deadline deadline = Deadline::after_seconds(30);
    while (me.comm.status().ok()) {
      require(!deadline.passed(), "the failure was not reported");
      if (!me.comm.progress()) me.comm.sleep_until_ready(Deadline::after_seconds(0.01));
    }
    EXPECT_TRUE(me.comm.has_failed());
    EXPECT_THAT(me.comm.status().text(), HasSubstr("rank "));
  });
}

}  // namespace
}  // namespace fdl::test
