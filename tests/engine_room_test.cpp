// Room on devices: memory in which a group packs its vectors, of the library that runs its collectives, and its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device_room.h"
#include "tests/support/device_team.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;

DeviceTeam team_with(const std::function<Result<DeviceLibrary*>(int rank)>& give,
                     std::map<std::string, std::string> options = {}) {
  options.try_emplace("suspect_after_s", "0.2");
  DeviceTeam team{.config = make_config(options)};
  if (give) team.library = [give](int rank) { return [give, rank] { return give(rank); }; };
  return team;
}
DeviceTeam team_with(HostLibrary& library, std::map<std::string, std::string> options = {}) {
  return team_with([&library](int) -> Result<DeviceLibrary*> { return &library; }, std::move(options));
}

struct Room {
  Status outcome;
  std::size_t bytes = 0;
  void* memory = nullptr;
};

void start_room(DeviceRank& me, Operation& operation, std::size_t bytes) {
  operation.spec = {.device = &me.device, .stream = me.stream};
  operation.room_bytes = bytes;
  me.comm.start(operation);
}

Room ask(DeviceRank& me, std::size_t bytes) {
  Operation operation;
  start_room(me, operation, bytes);
  const Status outcome = me.comm.wait(operation.completion, Deadline::after_seconds(60));
  return {outcome, operation.room_bytes, operation.room};
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

TEST(DeviceRoom, HasFewSizesAndHoldsWhatIsWanted) {
  EXPECT_EQ(DeviceRoom::size_for(1), 2 * kMiB);
  EXPECT_EQ(DeviceRoom::size_for(2 * kMiB), 2 * kMiB);
  EXPECT_EQ(DeviceRoom::size_for(2 * kMiB + 1), 4 * kMiB);
  EXPECT_EQ(DeviceRoom::size_for(64 * kMiB), 64 * kMiB);
  EXPECT_EQ(DeviceRoom::size_for(64 * kMiB + 1), 128 * kMiB);
  EXPECT_EQ(DeviceRoom::size_for(129 * kMiB), 192 * kMiB);
}

TEST(DeviceRoom, TheFirstOneSettlesWhoRunsCollectivesAndIsKnownToTheLibraryAlike) {
  HostLibrary library;
  run_device_team(3, team_with(library), [&](DeviceRank& me) {
    const Room room = ask(me, 1000);
    require(room.outcome);
    EXPECT_EQ(room.bytes, 2 * kMiB);
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), "2097152 alike, 2097152 alike, 2097152 alike");
    require(barrier(me.comm));
    sum_in(me, room.memory, 1000);
    expect_sum(me, room.memory, 1000);
    EXPECT_EQ(me.comm.runner_of({.count = 5, .device = &me.device}).by, "host library 7");
  });
  EXPECT_EQ(library.known(), "");
  EXPECT_EQ(library.allocated(), 0);
}

// The old one stays, and is known, as long as something that is queued works in it. The library may be at work besides.
TEST(DeviceRoom, ALargerOneReplacesItOnceWhatUsedItHasRun) {
  HostLibrary library({.busy_dismissals = 3});
  run_device_team(2, team_with(library), [&](DeviceRank& me) {
    const Room room = ask(me, 1000);
    require(room.outcome);
    sum_in(me, room.memory, 1000);
    me.device.hold(me.stream);
    Operation larger;
    start_room(me, larger, 3 * kMiB);
    for (int i = 0; i < 3; ++i) {
      me.comm.progress();
      me.comm.sleep_until_ready(Deadline::after_seconds(0.01));
    }
    EXPECT_FALSE(larger.completion.done);
    EXPECT_THAT(me.comm.phase(), HasSubstr("waiting until the memory for packing is free"));
    EXPECT_THAT(library.known(), HasSubstr("2097152 alike"));
    me.device.let_go();
    require(me.comm.wait(larger.completion, Deadline::after_seconds(60)));
    EXPECT_EQ(larger.room_bytes, 4 * kMiB);
    sum_in(me, larger.room, 400'000);
    expect_sum(me, larger.room, 400'000);
    require(barrier(me.comm));
    EXPECT_EQ(library.allocated(), 2);
    require(barrier(me.comm));
  });
  EXPECT_EQ(library.known(), "");
}

// What was used up between the last question and the sleep is not slept through.
TEST(DeviceRoom, DoesNotSleepOnceWhatUsedItHasRun) {
  HostDevice device;
  HostLibrary library({.busy_dismissals = 1});
  const std::vector<Member> alone(1);
  const auto id = require(library.make_id());
  auto joined = require(library.join(id, 0, alone, device, Deadline::never()));
  const Stream stream = require(device.make_stream());
  auto room = require(DeviceRoom::make(device));
  room->belong_to(library, *joined, true);
  require(room->take(1000));
  require(room->keep(true));
  device.hold(stream);
  require(room->begin(stream));
  EXPECT_FALSE(require(room->emptied()));
  EXPECT_TRUE(room->prepare_to_sleep());
  device.let_go();
  require(wait_readable(room->fd(), Deadline::after_seconds(60)), "the bell rings");
  EXPECT_FALSE(room->prepare_to_sleep());
  EXPECT_FALSE(wait_readable(room->fd(), Deadline::after_seconds(0))) << "and does not ring for ever";
  EXPECT_FALSE(require(room->emptied())) << "the library is at work";
  EXPECT_TRUE(room->prepare_to_sleep());
  EXPECT_TRUE(require(room->emptied()));
  EXPECT_EQ(library.allocated(), 0);
  room.reset();
  joined.reset();
  device.end_stream(stream);
}

TEST(DeviceRoom, ARankWithoutMemoryTakesOtherAndNobodyIsAlike) {
  HostLibrary library;
  HostLibrary poor({.no_memory = Status(Code::resource, "host library: out of memory")});
  const auto give = [&](int rank) -> Result<DeviceLibrary*> { return rank == 1 ? &poor : &library; };
  run_device_team(3, team_with(give), [&](DeviceRank& me) {
    const Room room = ask(me, 1000);
    require(room.outcome);
    sum_in(me, room.memory, 1000);
    expect_sum(me, room.memory, 1000);
    require(barrier(me.comm));
    EXPECT_EQ(library.known(), "2097152 here, 2097152 here");
    EXPECT_EQ(poor.known(), "");
    require(barrier(me.comm));
    const Room larger = ask(me, 3 * kMiB);  // what is no library's memory goes too
    require(larger.outcome);
    sum_in(me, larger.memory, 300'000);
    expect_sum(me, larger.memory, 300'000);
  });
}

TEST(DeviceRoom, WhereCollectivesAreStagedItIsAnyMemory) {
  HostLibrary library;
  run_device_team(2, team_with(library, {{"device_collectives", "staged"}}), [&](DeviceRank& me) {
    for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB}) {
      const Room room = ask(me, bytes);
      require(room.outcome);
      sum_in(me, room.memory, bytes / 8);
      expect_sum(me, room.memory, bytes / 8);
    }
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(DeviceRoom, WhereTheDeviceIsFullItIsTheHosts) {
  run_device_team(2, team_with({}), [&](DeviceRank& me) {
    require(ask(me, 8).outcome);
    if (me.rank() == 0) me.device.fail_call(HostDevice::Call::allocate, 1, Status(Code::resource, "host:0 is full"));
    const Room room = ask(me, 3 * kMiB);
    require(room.outcome);
    EXPECT_GE(me.device.pinned_bytes(), me.rank() == 0 ? 4 * kMiB : 0);
  });
}

TEST(DeviceRoom, IsTheDevicesAloneInAGroupOfOne) {
  HostLibrary library;
  run_device_team(1, team_with(library), [&](DeviceRank& me) {
    const Room room = ask(me, 1000);
    require(room.outcome);
    EXPECT_EQ(room.bytes, 2 * kMiB);
  });
}

// ---- Bad days

TEST(DeviceRoomFailure, AnInterruptEndsAGrowthAndQueuedWorkKeepsItsMemory) {
  HostLibrary library;
  run_device_team(2, team_with(library), [&](DeviceRank& me) {
    const Room room = ask(me, 1000);
    require(room.outcome);
    me.device.hold(me.stream);
    Operation larger;
    start_room(me, larger, 3 * kMiB);
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

TEST(DeviceRoomFailure, APeerThatLeavesWhileTheyTellEachOtherIsNamed) {
  HostLibrary library;
  run_device_team(2, team_with(library), [&](DeviceRank& me) {
    require(ask(me, 1000).outcome);
    if (me.rank() == 1) return;
    const Room room = ask(me, 3 * kMiB);
    EXPECT_FALSE(room.outcome.ok());
    EXPECT_THAT(room.outcome.text(), HasSubstr("rank 1"));
  });
  EXPECT_EQ(library.allocated(), 0);
}

TEST(DeviceRoomFailure, EachCallOfTheDeviceThatFailsEndsItForAll) {
  using Call = HostDevice::Call;
  for (const Call failing : {Call::set, Call::ring, Call::reached}) {
    HostLibrary library;
    run_device_team(2, team_with(library), [&](DeviceRank& me) {
      require(ask(me, 1000).outcome);
      if (me.rank() == 1) me.device.fail_call(failing, 1, Status(Code::unsupported, "host:1 has fallen off the bus"));
      const Room room = ask(me, 3 * kMiB);
      EXPECT_FALSE(room.outcome.ok());
      EXPECT_THAT(room.outcome.text(), HasSubstr("rank 1"));
      EXPECT_THAT(room.outcome.text(), HasSubstr(me.rank() == 1 ? "fallen off the bus" : "rank 1"));
      EXPECT_FALSE(me.comm.status().ok());
    });
  }
}

// What is queued fails when the host has long been done with it.
TEST(DeviceRoomFailure, WhatTheLibraryMeetsBetweenCollectivesEndsTheGroup) {
  HostLibrary library;
  run_device_team(2, team_with(library), [&](DeviceRank& me) {
    const Room room = ask(me, 1000);
    require(room.outcome);
    sum_in(me, room.memory, 10);
    expect_sum(me, room.memory, 10);
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
