// Tests of symmetric memory: registered on all ranks alike or on none, and released together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "tests/support/device_ranks.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

DeviceRanks stream(const std::function<Result<DeviceLibrary*>(int rank)>& give,
                   std::map<std::string, std::string> options = {}) {
  options.try_emplace("suspect_after_s", "0.2");
  DeviceRanks participants{.config = make_config(options)};
  if (give) participants.library = [give](int rank) { return [give, rank] { return give(rank); }; };
  return participants;
}
DeviceRanks stream(HostLibrary& library, std::map<std::string, std::string> options = {}) {
  return stream([&library](int) -> Result<DeviceLibrary*> { return &library; }, std::move(options));
}

struct Allocated {
  Status outcome;
  SymmetricAllocation symmetric_allocation;
};

void start_registration(DeviceRank& me, Operation& operation, SymmetricAllocation& symmetric_allocation,
                        std::size_t bytes, Stream stream) {
  symmetric_allocation.bytes = bytes;
  symmetric_allocation.stream = stream;
  operation.spec = {.device = &me.device, .stream = me.stream};
  operation.memory = SymmetricRequest{&symmetric_allocation};
  me.comm.start(operation);
}

Allocated allocate(DeviceRank& me, std::size_t bytes = 4096, Stream stream = nullptr) {
  Allocated allocated;
  Operation operation;
  start_registration(me, operation, allocated.symmetric_allocation, bytes, stream == nullptr ? me.stream : stream);
  allocated.outcome = me.comm.wait(operation.completion, Deadline::after_seconds(60));
  return allocated;
}

std::shared_ptr<SymmetricMemory> must_allocate(DeviceRank& me, std::size_t bytes = 4096) {
  Allocated allocated = allocate(me, bytes);
  require(allocated.outcome);
  require(allocated.symmetric_allocation.refusal);
  return std::move(allocated.symmetric_allocation.memory);
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

TEST(SymmetricMemory, IsRegisteredAndNumberedAlike) {
  HostLibrary library;
  run_device_ranks(3, stream(library), [&](DeviceRank& me) {
    Allocated first = allocate(me, 5000);
    require(first.outcome);
    EXPECT_TRUE(first.symmetric_allocation.is_registered);
    EXPECT_EQ(first.symmetric_allocation.number, 0);
    EXPECT_EQ(first.symmetric_allocation.memory->bytes(), 8192u) << "whole pages";
    const Allocated second = allocate(me);
    EXPECT_EQ(second.symmetric_allocation.number, 1);
    expect_sums(me, first.symmetric_allocation.memory->get());
    require(barrier(me.comm));
    EXPECT_EQ(library.known().size(), std::string("8192 alike, ").size() * 6 - 2);
    EXPECT_THAT(library.known(), HasSubstr("8192 alike"));
    require(barrier(me.comm));
  });
  EXPECT_EQ(library.allocated(), 0);
}

// The library may be busy when it is to unregister memory; the group waits for it asleep.
TEST(SymmetricMemory, IsReleasedByTheNextAllocationOnceAllRanksHaveReleasedIt) {
  HostLibrary library({.busy_dismissals = 3});
  run_device_ranks(2, stream(library), [&](DeviceRank& me) {
    auto first = must_allocate(me);
    expect_sums(me, first->get());
    if (me.rank() == 0) first->release();
    auto second = must_allocate(me);
    require(barrier(me.comm));
    EXPECT_EQ(library.allocated(), 4) << "rank 1 has not released its memory";
    require(barrier(me.comm));
    if (me.rank() == 1) first->release();
    first.reset();
    expect_sums(me, second->get());  // afterwards the stream's queued work has run
    auto third = must_allocate(me);
    require(barrier(me.comm));
    EXPECT_EQ(library.allocated(), 4);
    require(barrier(me.comm));
    expect_sums(me, third->get());
    expect_sums(me, second->get());
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(SymmetricMemory, StaysWhileQueuedWorkUsesIt) {
  HostLibrary library;
  run_device_ranks(2, stream(library), [&](DeviceRank& me) {
    const Stream own = require(me.device.make_stream());
    Allocated first = allocate(me, 4096, own);
    require(first.outcome);
    me.device.pause(own);
    first.symmetric_allocation.memory->release();
    void* const memory = first.symmetric_allocation.memory->get();
    first.symmetric_allocation.memory.reset();
    auto second = must_allocate(me);
    require(barrier(me.comm));
    EXPECT_EQ(library.allocated(), 4) << "queued work may still use the memory";
    require(barrier(me.comm));
    me.device.resume();
    int64_t value = 0;
    me.device.download(own, &value, memory, sizeof value);
    auto third = must_allocate(me);
    require(barrier(me.comm));
    EXPECT_EQ(library.allocated(), 4) << "the next allocation releases it";
    require(barrier(me.comm));
    me.device.end_stream(own);
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(SymmetricMemory, IsNotRegisteredIfOneRankHasOtherMemory) {
  HostLibrary library;
  HostLibrary poor({.no_memory = Status(Code::resource, "host library: out of memory")});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 1 ? &poor : &library; };
  run_device_ranks(3, stream(give), [&](DeviceRank& me) {
    const Allocated allocated = allocate(me);
    require(allocated.outcome);
    require(allocated.symmetric_allocation.refusal);
    EXPECT_FALSE(allocated.symmetric_allocation.is_registered);
    EXPECT_EQ(allocated.symmetric_allocation.memory->is_librarys(), me.rank() != 1);
    expect_sums(me, allocated.symmetric_allocation.memory->get());
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), "");
    require(barrier(me.comm));
    allocated.symmetric_allocation.memory->release();
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(SymmetricMemory, IsDeviceMemoryIfCollectivesAreStagedOrTheGroupHasOneRank) {
  for (const int size : {1, 2}) {
    HostLibrary library;
    run_device_ranks(size, stream(library, {{"device_collectives", size == 1 ? "auto" : "staged"}}),
                     [&](DeviceRank& me) {
                       const Allocated allocated = allocate(me);
                       require(allocated.outcome);
                       EXPECT_FALSE(allocated.symmetric_allocation.is_registered);
                       expect_sums(me, allocated.symmetric_allocation.memory->get());
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
  memory->release();
  memory.reset();
  EXPECT_EQ(library.allocated(), 0);
  device.end_stream(stream);
}

TEST(SymmetricMemoryFailure, RankWithoutMemoryIsNamedOnAllRanksAndNothingEnds) {
  HostLibrary library({.no_memory = Status(Code::resource, "host library: out of memory")});
  run_device_ranks(3, stream(library), [&](DeviceRank& me) {
    static_cast<void>(must_allocate(me));
    if (me.rank() == 1) {
      me.device.fail_call(HostDevice::Call::allocate, 1, Status(Code::resource, "host:1 is full"));
    }
    const Allocated allocated = allocate(me);
    require(allocated.outcome);
    EXPECT_EQ(allocated.symmetric_allocation.memory, nullptr);
    EXPECT_EQ(allocated.symmetric_allocation.refusal.code(), Code::resource);
    EXPECT_THAT(allocated.symmetric_allocation.refusal.text(), HasSubstr("rank 1"));
    EXPECT_THAT(allocated.symmetric_allocation.refusal.text(), HasSubstr("host:1 is full"));
    auto after = must_allocate(me);
    expect_sums(me, after->get());
  });
}

TEST(SymmetricMemoryFailure, PeerThatLeavesDuringTheExchangeIsNamed) {
  HostLibrary library;
  run_device_ranks(2, stream(library), [&](DeviceRank& me) {
    auto first = must_allocate(me);
    if (me.rank() == 1) return;
    const Allocated allocated = allocate(me);
    EXPECT_FALSE(allocated.outcome.ok());
    EXPECT_THAT(allocated.outcome.text(), HasSubstr("rank 1"));
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(SymmetricMemoryFailure, InterruptEndsTheAllocationAndLeavesNothing) {
  HostLibrary library;
  std::latch interrupted(2);
  run_device_ranks(2, stream(library), [&](DeviceRank& me) {
    auto first = must_allocate(me);
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
