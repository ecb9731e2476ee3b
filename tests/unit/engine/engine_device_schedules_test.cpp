// Tests of the catalog's algorithms on devices, over the channels of a library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "algorithms/catalog.h"
#include "tests/support/device_vectors.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

std::vector<CollectiveCase> cases_for(const Algorithm& algorithm, Dtype dtype, int size) {
  std::vector<CollectiveCase> cases;
  uint64_t seed = 1;
  for (const std::size_t count : {0, 1, 5, 300}) {
    for (const bool even : {true, false}) {
      if ((!even || count == 0) && algorithm.even_chunks_only) continue;  // a count of zero is no promise
      for (const bool in_place : {true, false}) {
        cases.push_back(make_case(algorithm.collective, dtype, size, count, even, in_place, ++seed));
      }
    }
  }
  return cases;
}

// The inputs are integers, so any order of reduction gives the same bits.
TEST(DeviceSchedules, EveryAlgorithmIsExactOverChannels) {
  for (int size = 2; size <= 5; ++size) {
    HostLibrary library({.busy_after_group = size % 2 * 2});
    DeviceRanks participants = with_library(library, {{"deterministic", "0"}, {"verify_schedules", "1"}});
    participants.device.most_delay_us = 20;
    int collectives = 0;
    run_device_ranks(size, participants, [&](DeviceRank& me) {
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

// The error reaches every rank, and the communicator stays usable.
TEST(DeviceSchedules, RefuseACapturedStream) {
  HostLibrary library;
  run_device_ranks(2, with_library(library, {{"deterministic", "0"}}), [&](DeviceRank& me) {
    const CollectiveCase c = make_case(Collective::allreduce, Dtype::int32, 2, 300, true, false, 3);
    run_case(c, me, "ring");
    CaseOnDevice on_device(c, me);
    Operation operation;
    operation.spec = on_device.spec();
    operation.spec.algorithm = "ring";
    operation.buffers = on_device.buffers();
    me.device.capture(me.stream, true);
    me.comm.start(operation);
    const Status refused = me.comm.wait(operation.completion, Deadline::after_seconds(60));
    me.device.capture(me.stream, false);
    EXPECT_EQ(refused.code(), Code::unsupported);
    EXPECT_THAT(refused.text(), HasSubstr("being captured into a graph"));
    run_case(c, me, "ring");
  });
}

TEST(DeviceSchedules, RankOrderGivesTheBitsOfTheHost) {
  HostLibrary library;
  run_device_ranks(4, with_library(library), [&](DeviceRank& me) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float8_e4m3}) {
      for (const Collective kind : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
        for (const bool in_place : {true, false}) {
          CollectiveCase c = make_case(kind, dtype, 4, 300, false, in_place, 5);
          run_case(c, me, "direct");
          c.prescale = 0.5;
          c.postscale = 3;
          run_case(c, me, "direct");
          c.prescale = 1;
          c.postscale = 1.0 / 6;
          run_case(c, me, "direct");
        }
      }
    }
  });
  EXPECT_EQ(library.started(), 0);
}

TEST(DeviceSchedules, ConfiguredAlgorithmRunsWhatItSupports) {
  HostLibrary library;
  run_device_ranks(3, with_library(library, {{"algorithm", "ring"}, {"deterministic", "0"}}), [&](DeviceRank& me) {
    run_case(make_case(Collective::allreduce, Dtype::int32, 3, 300, true, false, 1), me);
    require(library.groups() >= 4, "no ring");
    run_case(make_case(Collective::broadcast, Dtype::int32, 3, 300, true, false, 1), me);
    EXPECT_EQ(me.comm.runner_of({.count = 5, .device = &me.device}).algorithm, "ring");
    EXPECT_EQ(me.comm.runner_of({.collective = Collective::broadcast, .count = 5, .device = &me.device}).algorithm, "");
  });
  EXPECT_EQ(library.started(), 3);
}

TEST(DeviceSchedules, HostRunsTheAlgorithmWithoutChannels) {
  HostLibrary library({.has_channels = false});
  run_device_ranks(3, with_library(library, {{"deterministic", "0"}}), [&](DeviceRank& me) {
    run_case(make_case(Collective::allreduce, Dtype::int32, 3, 300, true, false, 1), me, "ring");
    const auto runner = me.comm.runner_of({.count = 5, .algorithm = "ring", .device = &me.device});
    EXPECT_EQ(runner.by, "staged over loopback");
    EXPECT_EQ(runner.algorithm, "ring");
  });
  EXPECT_EQ(library.groups(), 0);
}

TEST(DeviceSchedules, UnknownAlgorithmIsRejectedAndTheGroupStaysUsable) {
  HostLibrary library;
  run_device_ranks(2, with_library(library), [&](DeviceRank& me) {
    Ones vector(me, 10);
    CollectiveSpec spec{.dtype = Dtype::int64, .count = 10, .algorithm = "spiral", .device = &me.device};
    spec.stream = me.stream;
    EXPECT_THAT(call(me.comm, spec, vector.memory(), vector.memory()).text(), HasSubstr("spiral"));
    require(allreduce(me, vector.memory(), 10));
    require(vector.are(2), "wrong sum");
  });
}

TEST(DeviceSchedules, SeveralStreamsShareTheScratchBuffer) {
  HostLibrary library;
  DeviceRanks participants = with_library(library);
  participants.device.most_delay_us = 200;
  run_device_ranks(3, participants, [&](DeviceRank& me) {
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

TEST(DeviceSchedules, FailingDeviceEndsTheCollectiveOnAllRanks) {
  using Call = HostDevice::Call;
  HostLibrary library;
  int met = 0;
  for (const Call call_kind : {Call::allocate, Call::copy, Call::reduce, Call::set, Call::wait}) {
    for (const int nth : {1, 2, 3}) {
      const auto work = [&](DeviceRank& me) {
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
        // The other ranks may have queued all their work by then; their next call reports the failure.
        for (int i = 0; i < 3 && outcome.ok(); ++i) {
          outcome = call(me.comm, spec, vector.memory(), vector.memory());
          if (outcome.ok()) outcome = barrier(me.comm);
        }
        return outcome;
      };
      const DeviceRanks participants = with_library(library, {{"deterministic", "0"}});
      met += fails_everywhere(3, participants, work, "host:1 has fallen", "has left") ? 1 : 0;
    }
  }
  EXPECT_GT(met, 9);
}

}  // namespace
}  // namespace fdl::test
