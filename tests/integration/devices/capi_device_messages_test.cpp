// Tests of messages between devices through the C API: by NCCL, in groups, in any order of the calls, and their errors.
// Ranks are threads, on the fakes.
#include <barrier>

#include "tests/fakes/device/own_device.h"
#include "tests/fakes/nccl/fake_nccl.h"

namespace world_test {
namespace {

const Knobs kNccl{{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}};

fdl_call_options between_devices(int batch = 0) {
  fdl_call_options options;
  fdl_call_options_init(&options);
  options.between_devices = 1;
  options.batch = batch;
  return options;
}

class BetweenDevices : public testing::Test {
 protected:
  void SetUp() override { fake_nccl_reset(); }
  void TearDown() override {
    EXPECT_EQ(fake_nccl_count("communicators"), 0);
    EXPECT_EQ(fake_nccl_count("registrations"), 0);
    EXPECT_EQ(fake_cuda_pinned_bytes(), 0u);
    fake_nccl_reset();
  }
};

// One rank with its device, whose verbs start messages with other ranks.
struct Sender {
  explicit Sender(World& world) : me(world), device(world.rank) {}
  ~Sender() { device.synchronize(); }

  fdl_request* start(fdl_collective kind, int32_t* memory, std::size_t count, int peer, int batch = 0) {
    const fdl_call call = device.message(kind, memory, count, peer);
    const fdl_call_options options = between_devices(batch);
    fdl_request* request = nullptr;
    FDL_EXPECT_OK(fdl_call_ex(me.comm, &call, &options, &request));
    return request;
  }
  fdl_result run(fdl_collective kind, int32_t* memory, std::size_t count, int peer, int64_t timeout_ns = 0) {
    const fdl_call call = device.message(kind, memory, count, peer);
    fdl_call_options options = between_devices();
    options.timeout_ns = timeout_ns;
    return fdl_call_ex(me.comm, &call, &options, nullptr);
  }
  int32_t* fresh(std::size_t count) { return device.put(std::vector<int32_t>(count, -1)); }

  World& me;
  OwnDevice device;
};

void expect_error(fdl_result result, fdl_result as, const std::string& words) {
  EXPECT_EQ(result, as) << fdl_last_error()->text;
  EXPECT_NE(std::string(fdl_last_error()->text).find(words), std::string::npos) << fdl_last_error()->text;
}

TEST_F(BetweenDevices, PassAroundTheRingByNccl) {
  run_ranks(3, kNccl, [](World& me) {
    Sender rank(me);
    const int next = (me.rank + 1) % 3, before = (me.rank + 2) % 3;
    for (const std::size_t count : {0, 1, 5000}) {
      int32_t* given = rank.device.put(numbers(me.rank, count));
      int32_t* got = rank.fresh(count);
      fdl_request* requests[] = {rank.start(FDL_RECV, got, count, before), rank.start(FDL_SEND, given, count, next)};
      FDL_ASSERT_OK(fdl_wait_all(requests, 2));
      EXPECT_EQ(rank.device.get(got, count), numbers(before, count));
    }
    EXPECT_EQ(fake_cuda_pinned_bytes(), 0u) << "nothing goes through the host";
  });
  EXPECT_EQ(fake_nccl_calls("Send"), 3 * 2) << "an empty message needs no call";
  EXPECT_EQ(fake_nccl_calls("Recv"), 3 * 2);
  EXPECT_EQ(fake_nccl_calls("CommInitRankConfig"), 3 * 2) << "one communicator for each pair of ranks";
}

TEST_F(BetweenDevices, ABatchWithOnePeerIsOneGroup) {
  constexpr int kRounds = 5;
  run_ranks(2, kNccl, [](World& me) {
    Sender rank(me);
    const int other = 1 - me.rank;
    constexpr std::size_t kCount = 3000;
    for (int round = 0; round < kRounds; ++round) {
      int32_t* got[] = {rank.fresh(kCount), rank.fresh(kCount)};
      fdl_request* requests[] = {
          rank.start(FDL_SEND, rank.device.put(numbers(me.rank, kCount)), kCount, other, 4),
          rank.start(FDL_RECV, got[0], kCount, other, 4),
          rank.start(FDL_RECV, got[1], kCount, other, 4),
          rank.start(FDL_SEND, rank.device.put(numbers(7 + me.rank, kCount)), kCount, other, 4),
      };
      FDL_ASSERT_OK(fdl_wait_all(requests, 4));
      EXPECT_EQ(rank.device.get(got[0], kCount), numbers(other, kCount));
      EXPECT_EQ(rank.device.get(got[1], kCount), numbers(7 + other, kCount));
    }
  });
  EXPECT_EQ(fake_nccl_calls("GroupEnd"), 2 * kRounds) << "one group of each rank for each batch";
  EXPECT_EQ(fake_nccl_calls("Send"), 2 * 2 * kRounds);
}

// NCCL itself would hang in each of these programs: its calls run in the order in which they are made.
void pass_in_orders_of_a_cycle(const Knobs& knobs) {
  run_ranks(3, knobs, [](World& me) {
    Sender rank(me);
    constexpr std::size_t kCount = 2000;
    int32_t* got[3] = {rank.fresh(kCount), rank.fresh(kCount), rank.fresh(kCount)};
    const auto send = [&](int to) {
      return rank.start(FDL_SEND, rank.device.put(numbers(10 * me.rank + to, kCount)), kCount, to);
    };
    const auto recv = [&](int from) { return rank.start(FDL_RECV, got[from], kCount, from); };
    // Both directions of each pair, sends first, and a cycle over the three ranks in which each waits for the next.
    std::vector<fdl_request*> requests;
    if (me.rank == 0) requests = {send(1), recv(2), send(2), recv(1)};
    if (me.rank == 1) requests = {recv(2), recv(0), send(0), send(2)};
    if (me.rank == 2) requests = {send(0), send(1), recv(1), recv(0)};
    FDL_ASSERT_OK(fdl_wait_all(requests.data(), requests.size()));
    for (int from = 0; from < 3; ++from) {
      if (from == me.rank) continue;
      EXPECT_EQ(rank.device.get(got[from], kCount), numbers(10 * from + me.rank, kCount)) << from;
    }
  });
}

TEST_F(BetweenDevices, NoOrderOfCallsEndsInADeadlock) { pass_in_orders_of_a_cycle(kNccl); }

// A blocking communicator is made, and connects, in calls that wait for the peer, which may wait in one with the third
// rank. All pairs are joined at once here, so that each rank would begin with another one.
TEST_F(BetweenDevices, NoOrderOfCallsEndsInADeadlockWithDirectCalls) {
  fake_nccl_set("connects", 1);
  fake_nccl_set("hang_at_start", 1);
  std::thread opens([] {
    while (fake_nccl_calls("CommInitRankConfig") < 6) std::this_thread::yield();
    fake_nccl_set("hang_at_start", 0);
  });
  Knobs knobs = kNccl;
  knobs.insert(knobs.end(), {{"nccl_calls", "direct"}, {"nccl_call_timeout_s", "20"}});
  pass_in_orders_of_a_cycle(knobs);
  opens.join();
}

TEST_F(BetweenDevices, RunBesideCollectivesInAnyOrder) {
  run_ranks(2, kNccl, [](World& me) {
    Sender rank(me);
    constexpr std::size_t kCount = 1000;
    int32_t* memory = me.rank == 0 ? rank.device.put(numbers(3, kCount)) : rank.fresh(kCount);
    int32_t* sum = rank.device.put(std::vector<int32_t>(kCount, 1));
    fdl_call call = rank.device.message(FDL_RECV, sum, kCount, 0);
    call.collective = FDL_ALLREDUCE;
    call.input = sum;
    if (me.rank == 0) {
      fdl_request* sent = rank.start(FDL_SEND, memory, kCount, 1);
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));
      FDL_ASSERT_OK(fdl_wait(sent));
    } else {
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));
      FDL_ASSERT_OK(rank.run(FDL_RECV, memory, kCount, 0));
    }
    EXPECT_EQ(rank.device.get(memory, kCount), numbers(3, kCount));
    EXPECT_EQ(rank.device.get(sum, kCount), std::vector<int32_t>(kCount, 2));
  });
  EXPECT_EQ(fake_nccl_calls("Send"), 1);
}

// The send is on the device before rank 0 calls the allreduce. Its receive follows the allreduce on rank 1.
TEST_F(BetweenDevices, AStreamWaitsForASendFromItsWaitOn) {
  std::barrier called(2);
  run_ranks(2, kNccl, [&](World& me) {
    Sender rank(me);
    constexpr std::size_t kCount = 1000;
    int32_t* memory = me.rank == 0 ? rank.device.put(numbers(3, kCount)) : rank.fresh(kCount);
    int32_t* answer = me.rank == 1 ? rank.device.put(numbers(4, kCount)) : rank.fresh(kCount);
    int32_t* sum = rank.device.put(std::vector<int32_t>(kCount, 1));
    fdl_call call = rank.device.message(FDL_RECV, sum, kCount, 0);
    call.collective = FDL_ALLREDUCE;
    call.input = sum;
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));  // connects
    rank.device.synchronize();
    if (me.rank == 0) {
      fdl_request* sent = rank.start(FDL_SEND, memory, kCount, 1);
      fdl_request* received = rank.start(FDL_RECV, answer, kCount, 1);
      int done = 0;
      for (int more = 0; more<100; more += fake_nccl_calls("Send")> 0 ? 1 : 0) {
        FDL_ASSERT_OK(fdl_test(received, &done));
        ASSERT_EQ(done, 0) << "rank 1 sends it later";
      }
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));
      called.arrive_and_wait();
      FDL_ASSERT_OK(fdl_wait(sent));
      FDL_ASSERT_OK(fdl_wait(received));
    } else {
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));
      FDL_ASSERT_OK(rank.run(FDL_RECV, memory, kCount, 0));
      called.arrive_and_wait();
      FDL_ASSERT_OK(rank.run(FDL_SEND, answer, kCount, 0));
    }
    EXPECT_EQ(rank.device.get(memory, kCount), numbers(3, kCount));
    EXPECT_EQ(rank.device.get(answer, kCount), numbers(4, kCount));
    EXPECT_EQ(rank.device.get(sum, kCount), std::vector<int32_t>(kCount, 4));
  });
}

// ---- through the host, where NCCL cannot be used or one side lies there ----

TEST_F(BetweenDevices, GoThroughTheHostWithoutNccl) {
  run_ranks(3, kStaged, [](World& me) {
    Sender rank(me);
    const int next = (me.rank + 1) % 3, before = (me.rank + 2) % 3;
    for (const std::size_t count : {0, 1, 5000}) {
      int32_t* got = rank.fresh(count);
      fdl_request* requests[] = {rank.start(FDL_SEND, rank.device.put(numbers(me.rank, count)), count, next),
                                 rank.start(FDL_RECV, got, count, before)};
      FDL_ASSERT_OK(fdl_wait_all(requests, 2));
      EXPECT_EQ(rank.device.get(got, count), numbers(before, count));
    }
    EXPECT_GT(fake_cuda_pinned_bytes(), 0u);
    rank.device.synchronize();
  });
  EXPECT_EQ(fake_nccl_calls("Send"), 0);
}

TEST_F(BetweenDevices, MeetMemoryOfTheHost) {
  run_ranks(2, kNccl, [](World& me) {
    Sender rank(me);
    constexpr std::size_t kCount = 700;
    const fdl_call_options options = between_devices();
    const auto on_host = [&](fdl_collective kind, std::vector<int32_t>& values) {
      fdl_call call = rank.device.message(kind, values.data(), kCount, 1 - me.rank);
      call.device_kind = FDL_DEVICE_CPU;
      return fdl_call_ex(me.comm, &call, &options, nullptr);
    };
    if (me.rank == 0) {
      int32_t* memory = rank.device.put(numbers(5, kCount));
      FDL_ASSERT_OK(rank.run(FDL_SEND, memory, kCount, 1));
      FDL_ASSERT_OK(rank.run(FDL_RECV, memory, kCount, 1));
      EXPECT_EQ(rank.device.get(memory, kCount), numbers(6, kCount));
      FDL_ASSERT_OK(rank.run(FDL_SEND, memory, kCount, 1));
    } else {
      std::vector<int32_t> values(kCount);
      FDL_ASSERT_OK(on_host(FDL_RECV, values));
      EXPECT_EQ(values, numbers(5, kCount));
      values = numbers(6, kCount);
      FDL_ASSERT_OK(on_host(FDL_SEND, values));
      int32_t* got = rank.fresh(kCount);
      FDL_ASSERT_OK(rank.run(FDL_RECV, got, kCount, 0));
      EXPECT_EQ(rank.device.get(got, kCount), numbers(6, kCount));
    }
  });
  EXPECT_EQ(fake_nccl_calls("Send"), 1) << "the last one has both sides on devices";
}

TEST_F(BetweenDevices, GoThroughTheHostIfTheLowerRankCannotJoin) {
  fake_nccl_fail("CommInitRankConfig", 1, 2);
  run_ranks(2, kNccl, [](World& me) {
    Sender rank(me);
    int32_t* memory = me.rank == 0 ? rank.fresh(100) : rank.device.put(numbers(4, 100));
    FDL_ASSERT_OK(rank.run(me.rank == 0 ? FDL_RECV : FDL_SEND, memory, 100, 1 - me.rank));
    EXPECT_EQ(rank.device.get(memory, 100), numbers(4, 100));
    rank.device.synchronize();
  });
  EXPECT_EQ(fake_nccl_calls("Send"), 0);
}

// ---- streams ----

TEST_F(BetweenDevices, AreDoneOnTheDeviceAfterTheHost) {
  std::barrier meet(2);
  run_ranks(2, kNccl, [&](World& me) {
    Sender rank(me);
    constexpr std::size_t kCount = 300;
    int32_t* memory = me.rank == 0 ? rank.device.put(numbers(1, kCount)) : rank.fresh(kCount);
    const int32_t* newer = rank.device.put(numbers(2, kCount));
    int32_t* before = rank.fresh(kCount);
    int32_t* after = rank.fresh(kCount);
    const fdl_call call = rank.device.message(me.rank == 0 ? FDL_SEND : FDL_RECV, memory, kCount, 1 - me.rank);
    const fdl_call_options options = between_devices();
    FDL_ASSERT_OK(fdl_device_open(me.world, FDL_DEVICE_CUDA, me.rank));  // loads the kernels, for which it waits
    meet.arrive_and_wait();
    if (me.rank == 0) fake_cuda_hold();
    meet.arrive_and_wait();
    if (me.rank == 0) {
      rank.device.queue_copy(memory, newer, kCount);
    } else {
      rank.device.queue_copy(before, memory, kCount);
    }
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_call_submit(me.comm, &call, &options, &handle));
    FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
    rank.device.queue_copy(after, memory, kCount);
    int done = 1;
    FDL_EXPECT_OK(fdl_poll_device(handle, &done));
    EXPECT_EQ(done, 0) << "the device is held";
    meet.arrive_and_wait();
    if (me.rank == 0) fake_cuda_go_on();
    EXPECT_EQ(rank.device.get(after, kCount), numbers(2, kCount));
    if (me.rank == 1) {
      EXPECT_EQ(rank.device.get(before, kCount), std::vector<int32_t>(kCount, -1));
    }
    FDL_EXPECT_OK(fdl_poll_device(handle, &done));
    EXPECT_EQ(done, 1);
    fdl_handle_free(handle);
  });
}

// Starts a message of rank 0 to rank 1 while rank 0's device is held, so that it is on the device and not over, ends
// the request by `end`, and reads the received memory behind it.
void end_before_the_device(const std::function<void(fdl_request*)>& end) {
  constexpr std::size_t kCount = 300;
  std::barrier meet(2);
  run_ranks(2, kNccl, [&](World& me) {
    Sender rank(me);
    int32_t* memory = me.rank == 0 ? rank.device.put(numbers(1, kCount)) : rank.fresh(kCount);
    int32_t* after = rank.fresh(kCount);
    FDL_ASSERT_OK(fdl_device_open(me.world, FDL_DEVICE_CUDA, me.rank));  // loads the kernels, for which it waits
    meet.arrive_and_wait();
    if (me.rank == 0) fake_cuda_hold();
    meet.arrive_and_wait();
    end(rank.start(me.rank == 0 ? FDL_SEND : FDL_RECV, memory, kCount, 1 - me.rank));
    rank.device.queue_copy(after, memory, kCount);
    meet.arrive_and_wait();
    if (me.rank == 0) fake_cuda_go_on();
    EXPECT_EQ(rank.device.get(after, kCount), numbers(1, kCount));
  });
}

TEST_F(BetweenDevices, ARequestOrdersItsStreamHoweverItEnds) {
  end_before_the_device([](fdl_request* request) { FDL_EXPECT_OK(fdl_wait(request)); });
  end_before_the_device([](fdl_request* request) {
    for (int done = 0; done == 0;) FDL_ASSERT_OK(fdl_test(request, &done));
  });
  end_before_the_device([](fdl_request* request) {
    std::size_t index = 0;
    FDL_EXPECT_OK(fdl_wait_any(&request, 1, &index));
  });
  end_before_the_device(fdl_request_free);
}

TEST_F(BetweenDevices, AWaitInsideACaptureIsRefusedAndTheCaptureStaysValid) {
  run_ranks(2, kNccl, [](World& me) {
    Sender rank(me);
    int32_t* memory = rank.device.put(numbers(1, 10));
    for (const bool by_test : {false, true}) {
      if (me.rank == 1) {
        FDL_ASSERT_OK(rank.run(FDL_RECV, memory, 10, 0));
        continue;
      }
      fdl_request* request = rank.start(FDL_SEND, memory, 10, 1);
      ASSERT_EQ(fake_cuda_begin_capture(rank.device.stream()), 0);
      fdl_result result = FDL_OK;
      for (int done = by_test ? 0 : 1; by_test && done == 0;) result = fdl_test(request, &done);
      if (!by_test) result = fdl_wait(request);
      expect_error(result, FDL_UNSUPPORTED, "being captured");
      EXPECT_EQ(fake_cuda_end_capture(rank.device.stream()), 0);
    }
  });
}

TEST_F(BetweenDevices, AreRefusedInsideACapture) {
  run_ranks(2, kNccl, [](World& me) {
    Sender rank(me);
    int32_t* memory = rank.device.put(numbers(1, 10));
    ASSERT_EQ(fake_cuda_begin_capture(rank.device.stream()), 0);
    expect_error(rank.run(FDL_SEND, memory, 10, 1 - me.rank), FDL_UNSUPPORTED, "cannot be captured");
    EXPECT_EQ(fake_cuda_end_capture(rank.device.stream()), 0) << "the capture stays valid";
    FDL_ASSERT_OK(rank.run(me.rank == 0 ? FDL_SEND : FDL_RECV, memory, 10, 1 - me.rank));
  });
}

// ---- errors ----

TEST_F(BetweenDevices, DifferentSizesAreNamedOnBothSides) {
  for (const int lower_sends : {0, 1}) {
    run_ranks(2, kNccl, [&](World& me) {
      Sender rank(me);
      const bool sends = me.rank != lower_sends;
      expect_error(rank.run(sends ? FDL_SEND : FDL_RECV, rank.fresh(30), sends ? 30 : 20, 1 - me.rank), FDL_MISMATCH,
                   "0 bytes; give both sides tensors of one size");
      const std::string text = fdl_last_error()->text;
      EXPECT_NE(text.find("120 bytes"), std::string::npos) << text;
      EXPECT_NE(text.find("80 bytes"), std::string::npos) << text;
    });
  }
  EXPECT_EQ(fake_nccl_calls("CommInitRankConfig"), 0) << "NCCL is not touched";
}

TEST_F(BetweenDevices, AreNotMixedWithOtherMessages) {
  run_ranks(2, kNccl, [](World& me) {
    Sender rank(me);
    int32_t* memory = rank.device.put(numbers(1, 10));
    FDL_ASSERT_OK(rank.run(me.rank == 0 ? FDL_SEND : FDL_RECV, memory, 10, 1 - me.rank));
    int32_t value = 0;
    expect_error(fdl_send(me.comm, &value, 1, FDL_INT32, 1 - me.rank), FDL_INVALID_ARGUMENT, "between_devices");
    FDL_ASSERT_OK(rank.run(me.rank == 0 ? FDL_RECV : FDL_SEND, memory, 10, 1 - me.rank));
    const fdl_call call = rank.device.message(FDL_SEND, memory, 10, 1 - me.rank);
    const fdl_call_options options = between_devices(-1);
    expect_error(fdl_call_ex(me.comm, &call, &options, nullptr), FDL_INVALID_ARGUMENT, "batch is -1");
  });
}

TEST_F(BetweenDevices, ARankThatNeverCallsIsNamed) {
  std::barrier meet(2);
  run_ranks(2, kNccl, [&](World& me) {
    Sender rank(me);
    if (me.rank == 0) {
      expect_error(rank.run(FDL_RECV, rank.fresh(30), 30, 1, 200'000'000), FDL_TIMEOUT, "rank 1");
      EXPECT_NE(std::string(fdl_last_error()->text).find("recv of 120 bytes from rank 1"), std::string::npos)
          << fdl_last_error()->text;
    }
    meet.arrive_and_wait();
  });
}

TEST_F(BetweenDevices, AnErrorOfNcclEndsTheCommunicatorOfBothRanks) {
  Knobs knobs = kNccl;
  knobs.emplace_back("suspect_after_s", "0.05");
  fake_nccl_set("error_at", 1);
  run_ranks(2, knobs, [](World& me) {
    Sender rank(me);
    int32_t* memory = rank.fresh(30);
    fdl_result result = rank.run(me.rank == 0 ? FDL_SEND : FDL_RECV, memory, 30, 1 - me.rank);
    // The failure comes when the message is on the device; the next calls have it.
    while (result == FDL_OK) result = rank.run(me.rank == 0 ? FDL_SEND : FDL_RECV, memory, 30, 1 - me.rank);
    expect_error(result, FDL_TRANSPORT, "nccl: messages failed on rank");
    rank.device.synchronize();
  });
}

// The killed rank has queued its side, which its device never runs.
[[noreturn]] void queue_and_stay(const std::string& place, const Knobs& knobs, int started) {
  World me;
  EXPECT_EQ(open_world(place, 1, 2, knobs, me), FDL_OK) << fdl_last_error()->text;
  Sender rank(me);
  int32_t* memory = rank.fresh(30);
  fake_cuda_hold();
  EXPECT_EQ(rank.run(FDL_RECV, memory, 30, 0), FDL_OK) << fdl_last_error()->text;
  EXPECT_EQ(::write(started, "x", 1), 1);
  for (;;) ::pause();
}

TEST_F(BetweenDevices, WorkThatWaitsForALostRankEnds) {
  Knobs knobs = kNccl;
  knobs.emplace_back("suspect_after_s", "0.05");
  KilledRank peer(knobs, queue_and_stay);
  World me;
  FDL_ASSERT_OK(open_world(peer.place(), 0, 2, knobs, me));
  Sender rank(me);
  int32_t* memory = rank.device.put(numbers(1, 30));
  FDL_ASSERT_OK(rank.run(FDL_SEND, memory, 30, 1));
  peer.wait_until_started();
  peer.kill();
  rank.device.synchronize();  // returns because the library ends NCCL's work
  expect_error(rank.run(FDL_SEND, memory, 30, 1), FDL_PEER_LOST, "rank 1");
  EXPECT_EQ(fdl_last_error()->culprit_rank, 1);
}

// ---- memory that this rank registers ----

TEST_F(BetweenDevices, MemoryOfAFrameworkIsRegisteredWithNccl) {
  std::barrier meet(2);
  run_ranks(2, kNccl, [&](World& me) {
    Sender rank(me);
    int32_t* early = rank.device.put(std::vector<int32_t>(100, 1));
    int32_t* late = rank.device.put(std::vector<int32_t>(100, 1));
    const auto sum = [&](int32_t* memory) {
      fdl_call call = rank.device.message(FDL_RECV, memory, 100, 0);
      call.collective = FDL_ALLREDUCE;
      call.input = memory;
      FDL_EXPECT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));
    };
    const auto add = [&](void* memory, std::size_t bytes) {
      return fdl_comm_register(me.comm, FDL_DEVICE_CUDA, me.rank, memory, bytes);
    };
    FDL_ASSERT_OK(add(early, 400));
    expect_error(add(early, 400), FDL_INVALID_ARGUMENT, "registered already");
    expect_error(add(nullptr, 400), FDL_INVALID_ARGUMENT, "must not be NULL");
    expect_error(fdl_comm_register(me.comm, FDL_DEVICE_CPU, 0, early, 400), FDL_INVALID_ARGUMENT, "only memory on a");
    expect_error(fdl_comm_deregister(me.comm, late), FDL_INVALID_ARGUMENT, "is not registered");
    sum(early);
    sum(early);
    meet.arrive_and_wait();
    EXPECT_EQ(fake_nccl_count("registrations"), 2) << "one on each rank, from the first collective on";
    meet.arrive_and_wait();
    if (me.rank == 0) {
      FDL_ASSERT_OK(add(late, 400));
    }
    sum(late);
    rank.device.synchronize();
    meet.arrive_and_wait();
    EXPECT_EQ(fake_nccl_count("registrations"), 3) << "each rank decides for itself";
    meet.arrive_and_wait();
    if (me.rank == 0) {
      FDL_EXPECT_OK(fdl_comm_deregister(me.comm, late));
    }
    FDL_EXPECT_OK(fdl_comm_deregister(me.comm, early));
    meet.arrive_and_wait();
    EXPECT_EQ(fake_nccl_count("registrations"), 0);
    EXPECT_EQ(rank.device.get(early, 100), std::vector<int32_t>(100, 4));
    meet.arrive_and_wait();
  });
}

}  // namespace
}  // namespace world_test
