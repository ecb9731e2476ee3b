// Memory that a group's ranks hold on their devices: known to the library alike or not at all, given back together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "tests/support/device_ranks.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

DeviceRanks holders(const std::function<Result<DeviceLibrary*>(int rank)>& give,
                    std::map<std::string, std::string> options = {}) {
  options.try_emplace("suspect_after_s", "0.2");
  DeviceRanks team{.config = make_config(options)};
  if (give) team.library = [give](int rank) { return [give, rank] { return give(rank); }; };
  return team;
}
DeviceRanks holders(HostLibrary& library, std::map<std::string, std::string> options = {}) {
  return holders([&library](int) -> Result<DeviceLibrary*> { return &library; }, std::move(options));
}

struct Asked {
  Status outcome;
  SymmetricAllocation symmetric_allocation;
};

void start_registration(DeviceRank& me, Operation& operation, SymmetricAllocation& symmetric_allocation,
                        std::size_t bytes, Stream holders) {
  symmetric_allocation.bytes = bytes;
  symmetric_allocation.stream = holders;
  operation.spec = {.device = &me.device, .stream = me.stream};
  operation.memory = SymmetricRequest{&symmetric_allocation};
  me.comm.start(operation);
}

Asked hold(DeviceRank& me, std::size_t bytes = 4096, Stream holders = nullptr) {
  Asked asked;
  Operation operation;
  start_registration(me, operation, asked.symmetric_allocation, bytes, holders == nullptr ? me.stream : holders);
  asked.outcome = me.comm.wait(operation.completion, Deadline::after_seconds(60));
  return asked;
}

std::shared_ptr<SymmetricMemory> must_hold(DeviceRank& me, std::size_t bytes = 4096) {
  Asked asked = hold(me, bytes);
  require(asked.outcome);
  require(asked.symmetric_allocation.refusal);
  return std::move(asked.symmetric_allocation.memory);
}

void expect_sums(DeviceRank& me, void* memory) {
  const std::vector<int64_t> ones(500, 1);
  me.device.upload(me.stream, memory, ones.data(), 4000);
  require(
      call(me.comm, {.dtype = Dtype::int64, .count = 500, .device = &me.device, .stream = me.stream}, memory, memory));
  std::vector<int64_t> values(500);
  me.device.download(me.stream, values.data(), memory, 4000);
  EXPECT_EQ(values, std::vector<int64_t>(500, me.size()));
}

TEST(SymmetricMemory, IsKnownAlikeAndNumberedAlike) {
  HostLibrary library;
  run_device_ranks(3, holders(library), [&](DeviceRank& me) {
    Asked first = hold(me, 5000);
    require(first.outcome);
    EXPECT_TRUE(first.symmetric_allocation.is_known);
    EXPECT_EQ(first.symmetric_allocation.number, 0);
    EXPECT_EQ(first.symmetric_allocation.memory->bytes(), 8192u) << "whole pages";
    const Asked second = hold(me);
    EXPECT_EQ(second.symmetric_allocation.number, 1);
    expect_sums(me, first.symmetric_allocation.memory->get());
    require(barrier(me.comm));
    EXPECT_EQ(library.known().size(), std::string("8192 alike, ").size() * 6 - 2);
    EXPECT_THAT(library.known(), HasSubstr("8192 alike"));
    require(barrier(me.comm));
  });
  EXPECT_EQ(library.allocated(), 0);
}

// The library may be at work when it is to forget; the group waits for it, asleep.
TEST(SymmetricMemory, GoesBackWithTheNextWhenAllHaveLetGoOfIt) {
  HostLibrary library({.busy_dismissals = 3});
  run_device_ranks(2, holders(library), [&](DeviceRank& me) {
    auto first = must_hold(me);
    expect_sums(me, first->get());
    if (me.rank() == 0) first->let_go();
    auto second = must_hold(me);
    require(barrier(me.comm));
    EXPECT_EQ(library.allocated(), 4) << "rank 1 holds its own";
    require(barrier(me.comm));
    if (me.rank() == 1) first->let_go();
    first.reset();
    expect_sums(me, second->get());  // now the stream is through
    auto third = must_hold(me);
    require(barrier(me.comm));
    EXPECT_EQ(library.allocated(), 4);
    require(barrier(me.comm));
    expect_sums(me, third->get());
    expect_sums(me, second->get());
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(SymmetricMemory, StaysWhileItsHoldersStreamIsNotThrough) {
  HostLibrary library;
  run_device_ranks(2, holders(library), [&](DeviceRank& me) {
    const Stream own = require(me.device.make_stream());
    Asked first = hold(me, 4096, own);
    require(first.outcome);
    me.device.hold(own);
    first.symmetric_allocation.memory->let_go();
    void* const memory = first.symmetric_allocation.memory->get();
    first.symmetric_allocation.memory.reset();
    auto second = must_hold(me);
    require(barrier(me.comm));
    EXPECT_EQ(library.allocated(), 4) << "what is queued may use it still";
    require(barrier(me.comm));
    me.device.let_go();
    int64_t value = 0;
    me.device.download(own, &value, memory, sizeof value);
    auto third = must_hold(me);
    require(barrier(me.comm));
    EXPECT_EQ(library.allocated(), 4) << "and goes the next time";
    require(barrier(me.comm));
    me.device.end_stream(own);
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(SymmetricMemory, IsKnownToNobodyWhereOneRankHasOtherMemory) {
  HostLibrary library;
  HostLibrary poor({.no_memory = Status(Code::resource, "host library: out of memory")});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 1 ? &poor : &library; };
  run_device_ranks(3, holders(give), [&](DeviceRank& me) {
    const Asked asked = hold(me);
    require(asked.outcome);
    require(asked.symmetric_allocation.refusal);
    EXPECT_FALSE(asked.symmetric_allocation.is_known);
    EXPECT_EQ(asked.symmetric_allocation.memory->is_librarys(), me.rank() != 1);
    expect_sums(me, asked.symmetric_allocation.memory->get());
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), "");
    require(barrier(me.comm));
    asked.symmetric_allocation.memory->let_go();
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(SymmetricMemory, IsTheDevicesWhereCollectivesAreStagedAndInAGroupOfOne) {
  for (const int size : {1, 2}) {
    HostLibrary library;
    run_device_ranks(size, holders(library, {{"device_collectives", size == 1 ? "auto" : "staged"}}),
                     [&](DeviceRank& me) {
                       const Asked asked = hold(me);
                       require(asked.outcome);
                       EXPECT_FALSE(asked.symmetric_allocation.is_known);
                       expect_sums(me, asked.symmetric_allocation.memory->get());
                     });
    EXPECT_EQ(library.allocated(), 0);
  }
}

TEST(SymmetricMemory, OutlivesItsGroup) {
  HostLibrary library;
  HostDevice device;
  const std::vector<Member> alone(1);
  const Stream stream = require(device.make_stream());
  auto memory = require(SymmetricMemory::take(device, &library, stream, 100));
  EXPECT_EQ(library.allocated(), 1);
  memory->let_go();
  memory.reset();
  EXPECT_EQ(library.allocated(), 0);
  device.end_stream(stream);
}

TEST(SymmetricMemoryFailure, ARankWithoutAnyIsNamedToAllAndNothingEnds) {
  HostLibrary library({.no_memory = Status(Code::resource, "host library: out of memory")});
  run_device_ranks(3, holders(library), [&](DeviceRank& me) {
    static_cast<void>(must_hold(me));
    if (me.rank() == 1) {
      me.device.fail_call(HostDevice::Call::allocate, 1, Status(Code::resource, "host:1 is full"));
    }
    const Asked asked = hold(me);
    require(asked.outcome);
    EXPECT_EQ(asked.symmetric_allocation.memory, nullptr);
    EXPECT_EQ(asked.symmetric_allocation.refusal.code(), Code::resource);
    EXPECT_THAT(asked.symmetric_allocation.refusal.text(), HasSubstr("rank 1"));
    EXPECT_THAT(asked.symmetric_allocation.refusal.text(), HasSubstr("host:1 is full"));
    auto after = must_hold(me);
    expect_sums(me, after->get());
  });
}

TEST(SymmetricMemoryFailure, APeerThatLeavesWhileTheyTellEachOtherIsNamed) {
  HostLibrary library;
  run_device_ranks(2, holders(library), [&](DeviceRank& me) {
    auto first = must_hold(me);
    if (me.rank() == 1) return;
    const Asked asked = hold(me);
    EXPECT_FALSE(asked.outcome.ok());
    EXPECT_THAT(asked.outcome.text(), HasSubstr("rank 1"));
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(SymmetricMemoryFailure, AnInterruptEndsItAndLeavesNothing) {
  HostLibrary library;
  std::latch interrupted(2);
  run_device_ranks(2, holders(library), [&](DeviceRank& me) {
    auto first = must_hold(me);
    if (me.rank() == 1) return interrupted.arrive_and_wait();
    SymmetricAllocation next;
    Operation operation;
    start_registration(me, operation, next, 4096, me.stream);
    me.comm.interrupt(Status(Code::peer_lost, "rank 7 was killed"));
    me.comm.progress();
    interrupted.arrive_and_wait();
    EXPECT_TRUE(operation.completion.done);
    EXPECT_THAT(operation.completion.status.text(), HasSubstr("rank 7 was killed"));
    EXPECT_EQ(next.memory, nullptr);
  });
  EXPECT_EQ(library.allocated(), 0);
}

}  // namespace
}  // namespace fdl::test
