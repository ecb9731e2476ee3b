// Tests of collectives on devices, staged through host memory: their results, their order among streams, their
// failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "tests/support/device_vectors.h"

namespace fdl::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Staged, EveryCollectiveIsExactInSizesAroundASegment) {
  for (int size = 1; size <= 5; ++size) {
    DeviceRanks participants = staging();
    participants.device.most_delay_us = 30;
    participants.device.seed = static_cast<uint64_t>(size) * 100;
    run_device_ranks(size, participants, [&](DeviceRank& me) {
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

TEST(Staged, EveryTypeIsReducedAndScaledAsOnTheHost) {
  run_device_ranks(3, staging(), [&](DeviceRank& me) {
    for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
      for (const Collective kind : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
        for (const double prescale : {1.0, 0.5}) {
          CollectiveCase c = make_case(kind, static_cast<Dtype>(dtype), 3, 150, true, dtype % 2 == 0, 7);
          c.prescale = prescale;
          c.postscale = prescale == 1 ? 1 : 3;
          run_case(c, me);
        }
        CollectiveCase average = make_case(kind, static_cast<Dtype>(dtype), 3, 150, true, dtype % 2 == 0, 8);
        average.postscale = 1.0 / 3;
        run_case(average, me);
      }
    }
  });
}

TEST(Staged, UserFunctionIsCalledOnTheHost) {
  run_device_ranks(3, staging(), [&](DeviceRank& me) {
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

// A single rank works on the device alone, so its stream may be captured.
TEST(Staged, GroupOfOneWorksOnTheDeviceAlone) {
  run_device_ranks(1, staging(), [&](DeviceRank& me) {
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

TEST(Staged, LongerCollectiveGrowsTheSlots) {
  run_device_ranks(2, staging({{"device_staging_bytes", "4096"}}), [&](DeviceRank& me) {
    for (const std::size_t count : {10, 5000, 20, 900, 5000}) {
      run_case(make_case(Collective::allreduce, Dtype::float32, 2, count, true, false, count), me);
      require(me.device.pinned_bytes() <= 3 * 4096, "a slot is larger than a segment");
    }
  });
}

// ---- Order on the user's stream ----

TEST(Staged, WaitsOnlyForEarlierWorkOfTheUser) {
  run_device_ranks(3, staging(), [&](DeviceRank& me) {
    Ones vector(me, 200);
    require(allreduce(me, vector.memory(), 200));  // completes the backend negotiation
    me.device.pause(me.stream);
    // The data that the collective must see is queued behind the hold.
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
    me.device.resume();
    require(me.comm.wait(operation.completion, Deadline::after_seconds(60)));
    require(vector.are(15), "wrong sum");
  });
}

TEST(Staged, CollectivesOnSeveralStreamsKeepTheirOrder) {
  DeviceRanks participants = staging();
  participants.device.most_delay_us = 100;
  run_device_ranks(2, participants, [&](DeviceRank& me) {
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

TEST(Staged, BarrierComesAfterTheWorkOfTheStream) {
  std::latch looked(2);
  run_device_ranks(2, staging(), [&](DeviceRank& me) {
    std::atomic<bool> ran{false};
    if (me.rank() == 0) {
      me.device.pause(me.stream);
      require(me.device.enqueue(me.stream, [&] { ran = true; }));
    }
    Operation operation;
    operation.spec = {.collective = Collective::barrier, .device = &me.device, .stream = me.stream};
    me.comm.start(operation);
    for (int i = 0; i < 50; ++i) me.comm.progress();
    const bool went_through = operation.completion.done;
    looked.arrive_and_wait();
    require(!went_through, "went through");
    me.device.resume();
    require(me.comm.wait(operation.completion, Deadline::after_seconds(60)));
    require(me.rank() != 0 || ran, "came before the stream's work");
  });
}

TEST(Staged, CapturedStreamIsRejectedAndTheGroupStaysUsable) {
  run_device_ranks(2, staging(), [&](DeviceRank& me) {
    Ones vector(me, 50);
    for (const char* remedy : {"run one collective before the capture begins", "device_collectives=nccl"}) {
      me.device.capture(me.stream, true);
      const Status refused = allreduce(me, vector.memory(), 50);
      EXPECT_EQ(refused.code(), Code::unsupported);
      EXPECT_THAT(refused.text(), AllOf(HasSubstr("captured"), HasSubstr(remedy)));
      me.device.capture(me.stream, false);
      require(allreduce(me, vector.memory(), 50));
    }
    require(vector.are(4), "wrong sum");
  });
}

// ---- Failures ----

// Makes a call of rank 1's device fail; returns whether that call was made.
bool fails_everywhere(const std::function<void(HostDevice&)>& plan, const std::string& what) {
  const auto work = [&](DeviceRank& me) {
    Ones vector(me, 300);
    require(barrier(me.comm));
    if (me.rank() == 1) plan(me.device);
    const Status outcome = allreduce(me, vector.memory(), 300);
    // A rank that only copies back may have finished before.
    const Status later = outcome.ok() ? allreduce(me, vector.memory(), 300) : outcome;
    if (later.ok()) return later;
    EXPECT_FALSE(me.comm.status().ok());
    Operation last;
    last.spec = {.dtype = Dtype::int64, .count = 300, .device = &me.device, .stream = me.stream};
    me.comm.start(last);
    EXPECT_TRUE(last.completion.done);
    return later;
  };
  // The other ranks get the failure from rank 1, or from a rank that failed after it.
  return fails_everywhere(3, staging(), work, what, "has left; see its own error");
}

TEST(StagedFailure, AnyFailingDeviceCallEndsTheCollectiveOnAllRanks) {
  using Call = HostDevice::Call;
  const Status off(Code::unsupported, "host:1 has fallen off the bus");
  int met = 0;
  for (const Call call : {Call::allocate_pinned, Call::make_stream, Call::make_event, Call::set, Call::wait,
                          Call::reached, Call::ring, Call::copy, Call::captured}) {
    for (const int nth : {1, 2, 3, 4, 7, 12, 20}) {
      const bool asks = call == Call::allocate_pinned || call == Call::make_stream || call == Call::make_event;
      const Status why = asks ? Status(Code::resource, "host:1 has fallen short") : off;
      met +=
          fails_everywhere([&](HostDevice& device) { device.fail_call(call, nth, why); }, "host:1 has fallen") ? 1 : 0;
    }
  }
  EXPECT_GT(met, 40);
}

// The notifier rings no more, so the waiting thread must poll.
TEST(StagedFailure, LostDeviceIsDetectedWithoutANotification) {
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

TEST(StagedFailure, PeerThatLeavesIsNamedAndQueuedCopiesKeepTheirMemory) {
  run_device_ranks(2, staging(), [&](DeviceRank& me) {
    Ones vector(me, 3000);
    require(barrier(me.comm));
    if (me.rank() == 1) return me.comm.interrupt(Status(Code::aborted, "has had enough"));
    const Status outcome = allreduce(me, vector.memory(), 3000);
    EXPECT_THAT(outcome.text(), HasSubstr("rank 11 (host-1)"));
  });
}

TEST(StagedFailure, InterruptEndsACollectiveWithPendingCopies) {
  run_device_ranks(2, staging(), [&](DeviceRank& me) {
    Ones vector(me, 300);
    require(allreduce(me, vector.memory(), 300));
    require(barrier(me.comm));
    me.device.pause(me.stream);
    Operation operation;
    operation.spec = {.dtype = Dtype::int64, .count = 300, .device = &me.device, .stream = me.stream};
    operation.buffers = {vector.memory(), vector.memory()};
    me.comm.start(operation);
    me.comm.interrupt(Status(Code::aborted, "stop it"));
    const Status outcome = me.comm.wait(operation.completion, Deadline::after_seconds(60));
    EXPECT_THAT(outcome.text(), HasSubstr("stop it"));
    // Work that is queued on the user's stream now comes after the copies that were in flight.
    std::atomic<bool> ran{false};
    require(me.device.enqueue(me.stream, [&] { ran = true; }));
    require(!ran, "came before them");
    me.device.resume();
    require(me.device.synchronize(me.stream));
    require(ran, "never came");
  });
}

TEST(StagedFailure, DeadlineNamesTheLateRank) {
  run_device_ranks(2, staging(), [&](DeviceRank& me) {
    Ones vector(me, 300);
    require(allreduce(me, vector.memory(), 300));
    if (me.rank() == 1) {
      // Stays without calling until the other rank has left.
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

}  // namespace
}  // namespace fdl::test
