// Tests of collectives on devices over several hosts: a library inside them and staging between, and the reverse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/device_vectors.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

DeviceRanks on_two_hosts(HostLibrary& library, const std::string& segment, const std::string& setting) {
  DeviceRanks participants = with_library(library, {{"device_collectives", setting},
                                                    {"deterministic", "0"},
                                                    {"slice_bytes", segment},
                                                    {"device_staging_bytes", segment}});
  participants.change = [](Communicator::Parts& parts) {
    parts.shape.hosts = 2;
    parts.shape.ranks_per_host = static_cast<int>(parts.members.size()) / 2;
  };
  return participants;
}

class HierarchyOnDevices : public testing::TestWithParam<const char*> {
 protected:
  static bool library_is_inside() { return std::string(GetParam()) == "hierarchical"; }
};
INSTANTIATE_TEST_SUITE_P(BothWays, HierarchyOnDevices, testing::Values("hierarchical", "nccl_between"));

// Between hosts the library has the ranks with one local rank on each host, and runs only allreduces and broadcasts.
TEST_P(HierarchyOnDevices, LibraryRunsOneSideAndStagingTheOther) {
  for (const int size : {4, 6}) {
    HostLibrary library({.gathers = library_is_inside()});
    DeviceRanks participants = on_two_hosts(library, "256", GetParam());
    participants.device.most_delay_us = 50;
    run_device_ranks(size, participants, [&](DeviceRank& me) {
      for (int kind = 0; kind < kCollectiveCount; ++kind) {
        for (const std::size_t count : {0, 1, 5, 300}) {
          for (const bool in_place : {true, false}) {
            run_case(make_case(static_cast<Collective>(kind), Dtype::int32, size, count, false, in_place, 2), me);
          }
        }
      }
      const auto runner = me.comm.runner_of({.count = 5, .device = &me.device});
      EXPECT_EQ(runner.by, library_is_inside() ? "host library 7 inside hosts, staged between"
                                               : "staged inside hosts, host library 7 between");
      const auto other = me.comm.runner_of({.collective = Collective::reduce, .count = 5, .device = &me.device});
      EXPECT_EQ(other.by, "staged over loopback");
    });
    // Inside: a reduce_scatter and an allgather, or a broadcast. Between: an allreduce on all ranks, and a broadcast on
    // the ranks with the root's local rank.
    EXPECT_EQ(library.started(), library_is_inside() ? size * 8 * 3 : (size + 2) * 8);
  }
}

// There are at least two segments, so that both sides work at the same time; an outer epoll set waits on the
// communicator.
TEST_P(HierarchyOnDevices, LongVectorIsSegmentedAndAFailingDeviceEndsAllRanks) {
  HostLibrary library({.gathers = true});
  DeviceRanks participants = on_two_hosts(library, "65536", GetParam());
  std::atomic<int> failed{0};
  run_device_ranks(4, participants, [&](DeviceRank& me) {
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

TEST_P(HierarchyOnDevices, UnequalHostsAreStaged) {
  HostLibrary library({.gathers = true});
  DeviceRanks participants = on_two_hosts(library, "256", GetParam());
  participants.change = {};
  run_device_ranks(3, participants, [&](DeviceRank& me) {
    Ones vector(me, 100);
    require(allreduce(me, vector.memory(), 100));
    require(vector.are(3), "wrong sum");
    EXPECT_EQ(me.comm.runner_of({.count = 5, .device = &me.device}).by, "staged over loopback");
  });
}

}  // namespace
}  // namespace fdl::test
