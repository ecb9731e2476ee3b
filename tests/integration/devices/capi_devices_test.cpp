// Tests of the C API on devices: messages, their order among the work of a stream, and errors for wrong devices. Ranks
// are threads, on the fakes.
#include <barrier>
#include <mutex>
#include <optional>

#include "tests/fakes/device/own_device.h"

namespace world_test {
namespace {

TEST(DeviceMessages, PassAroundTheRing) {
  run_ranks(3, kStaged, [](World& me) {
    OwnDevice device(me.rank);
    const int next = (me.rank + 1) % 3, before = (me.rank + 2) % 3;
    for (const std::size_t count : {0, 1, 5000}) {
      int32_t* given = device.put(numbers(me.rank, count));
      int32_t* got = device.put(std::vector<int32_t>(count, -1));
      const fdl_call send = device.message(FDL_SEND, given, count, next);
      const fdl_call recv = device.message(FDL_RECV, got, count, before);
      fdl_request* requests[2];
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &recv, nullptr, &requests[0]));
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &send, nullptr, &requests[1]));
      FDL_ASSERT_OK(fdl_wait_all(requests, 2));
      EXPECT_EQ(device.get(got, count), numbers(before, count));
    }
  });
}

// One side of each message is on a device, the other on the host; both directions block.
TEST(DeviceMessages, ConnectDeviceAndHostMemory) {
  run_ranks(2, kStaged, [](World& me) {
    constexpr std::size_t kCount = 700;
    OwnDevice device(me.rank);
    if (me.rank == 0) {
      int32_t* memory = device.put(numbers(5, kCount));
      const fdl_call send = device.message(FDL_SEND, memory, kCount, 1);
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &send, nullptr, nullptr));
      const fdl_call recv = device.message(FDL_RECV, memory, kCount, 1);
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &recv, nullptr, nullptr));
      EXPECT_EQ(device.get(memory, kCount), numbers(6, kCount));
    } else {
      std::vector<int32_t> values(kCount);
      FDL_ASSERT_OK(fdl_recv(me.comm, values.data(), kCount, FDL_INT32, 0));
      EXPECT_EQ(values, numbers(5, kCount));
      values = numbers(6, kCount);
      fdl_call send;
      fdl_call_init(&send);
      send.collective = FDL_SEND;
      send.input = values.data();
      send.count = kCount;
      send.dtype = FDL_INT32;
      send.root = 0;
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &send, nullptr, nullptr));
    }
  });
}

// ---- order among the work of a stream, for which the host does not wait ----

// Stops the fake's streams, also those of the library, until go_on(), and slows their work during its lifetime.
class Standstill {
 public:
  Standstill() {
    fake_cuda_delay_us(300);
    fake_cuda_hold();
  }
  ~Standstill() {
    go_on();
    fake_cuda_delay_us(0);
  }
  void go_on() { fake_cuda_go_on(); }
};

// The first messages open the device and allocate pinned memory, for which the driver waits for the device; later ones
// use it again. Rank 0 sends, rank 1 receives; `device` is null on the rank whose side lies on the host.
void warm_up(World& me, OwnDevice* device, std::size_t count) {
  std::vector<int32_t> values = numbers(0, count);
  for (int i = 0; i < 2; ++i) {
    const fdl_collective kind = me.rank == 0 ? FDL_SEND : FDL_RECV;
    if (device != nullptr) {
      const fdl_call call = device->message(kind, device->put(values), count, 1 - me.rank);
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));
      device->synchronize();
    } else if (me.rank == 0) {
      FDL_ASSERT_OK(fdl_send(me.comm, values.data(), count, FDL_INT32, 1));
    } else {
      FDL_ASSERT_OK(fdl_recv(me.comm, values.data(), count, FDL_INT32, 0));
    }
  }
}

bool is_done(fdl_request* request) {
  int done = 0;
  for (int i = 0; i < 50; ++i) FDL_EXPECT_OK(fdl_test(request, &done));
  return done != 0;
}

// Work queued before the send runs first; work queued after its completion runs later.
TEST(DeviceMessages, SendReadsWhatTheStreamHasWrittenBefore) {
  run_ranks(2, kStaged, [](World& me) {
    constexpr std::size_t kCount = 300;
    OwnDevice device(me.rank);
    warm_up(me, me.rank == 0 ? &device : nullptr, kCount);
    if (me.rank == 0) {
      int32_t* memory = device.put(numbers(1, kCount));
      const int32_t* newer = device.put(numbers(2, kCount));
      const int32_t* later = device.put(numbers(3, kCount));
      Standstill still;
      device.queue_much(device.put({0, 0}));
      device.queue_copy(memory, newer, kCount);
      const fdl_call send = device.message(FDL_SEND, memory, kCount, 1);
      fdl_request* request = nullptr;
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &send, nullptr, &request));
      EXPECT_FALSE(is_done(request)) << "the stream has not reached it";
      still.go_on();
      FDL_ASSERT_OK(fdl_wait(request));
      device.queue_copy(memory, later, kCount);
      EXPECT_EQ(device.get(memory, kCount), numbers(3, kCount));
    } else {
      std::vector<int32_t> values(kCount);
      FDL_ASSERT_OK(fdl_recv(me.comm, values.data(), kCount, FDL_INT32, 0));
      EXPECT_EQ(values, numbers(2, kCount));
    }
  });
}

// The host is done while the device is stopped: earlier work of the stream reads the old values, later work the new
// ones.
TEST(DeviceMessages, ReceiveRunsBetweenEarlierAndLaterStreamWork) {
  run_ranks(2, kStaged, [](World& me) {
    constexpr std::size_t kCount = 300;
    std::vector<int32_t> values = numbers(5, kCount);
    if (me.rank == 0) {
      warm_up(me, nullptr, kCount);
      fdl_request* request = nullptr;
      FDL_ASSERT_OK(fdl_isend(me.comm, values.data(), kCount, FDL_INT32, 1, &request));
      FDL_ASSERT_OK(fdl_wait(request));
      return;
    }
    OwnDevice device(me.rank);
    warm_up(me, &device, kCount);
    int32_t* memory = device.put(numbers(1, kCount));
    int32_t* before = device.put(std::vector<int32_t>(kCount, -1));
    int32_t* after = device.put(std::vector<int32_t>(kCount, -1));
    Standstill still;
    device.queue_much(device.put({0, 0}));
    device.queue_copy(before, memory, kCount);
    const fdl_call recv = device.message(FDL_RECV, memory, kCount, 0);
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &recv, nullptr, nullptr));  // the host waits only for the message
    device.queue_copy(after, memory, kCount);
    still.go_on();
    EXPECT_EQ(device.get(after, kCount), numbers(5, kCount));
    EXPECT_EQ(device.get(before, kCount), numbers(1, kCount));
    EXPECT_EQ(device.get(memory, kCount), numbers(5, kCount));
  });
}

// The same for a collective: with NCCL the host is done while the device is stopped; staged over the host it is not.
TEST(DeviceCollectives, RunBetweenEarlierAndLaterStreamWork) {
  for (const bool by_nccl : {false, true}) {
    const Knobs nccl{{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}};
    std::barrier meet(2);
    run_ranks(2, by_nccl ? nccl : kStaged, [&](World& me) {
      constexpr std::size_t kCount = 300;
      OwnDevice device(me.rank);
      int32_t* memory = device.put(numbers(0, kCount));
      const int32_t* newer = device.put(numbers(me.rank + 1, kCount));
      int32_t* before = device.put(std::vector<int32_t>(kCount, -1));
      int32_t* after = device.put(std::vector<int32_t>(kCount, -1));
      fdl_call call = device.message(FDL_RECV, memory, kCount, 0);
      call.collective = FDL_ALLREDUCE;
      call.input = memory;
      FDL_EXPECT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));  // the first call agrees on the devices
      meet.arrive_and_wait();
      std::optional<Standstill> still;
      if (me.rank == 0) still.emplace();
      meet.arrive_and_wait();
      device.queue_much(device.put({0, 0}));
      device.queue_copy(memory, newer, kCount);
      device.queue_copy(before, memory, kCount);
      fdl_request* request = nullptr;
      FDL_EXPECT_OK(fdl_call_ex(me.comm, &call, nullptr, &request));
      if (by_nccl) {
        FDL_EXPECT_OK(fdl_wait(request));
      } else {
        EXPECT_FALSE(is_done(request)) << "the stream has not reached it";
      }
      meet.arrive_and_wait();
      if (still) still->go_on();
      if (!by_nccl) {
        FDL_EXPECT_OK(fdl_wait(request));
      }
      device.queue_copy(after, memory, kCount);
      std::vector<int32_t> sum = numbers(3, kCount);
      for (std::size_t i = 0; i < kCount; ++i) sum[i] += static_cast<int32_t>(i);
      EXPECT_EQ(device.get(after, kCount), sum);
      EXPECT_EQ(device.get(before, kCount), numbers(me.rank + 1, kCount));
    });
  }
}

// The device runs the operations of a graph later, and a query for a captured event would end the capture.
TEST(DeviceCollectives, OfACaptureAreDoneWithoutAQuery) {
  static std::mutex turn;  // the fake keeps only the last capture
  run_ranks(2, {{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}}, [&](World& me) {
    constexpr std::size_t kCount = 300;
    OwnDevice device(me.rank);
    int32_t* memory = device.put(numbers(me.rank, kCount));
    fdl_call call = device.message(FDL_RECV, memory, kCount, 0);
    call.collective = FDL_ALLREDUCE;
    call.input = memory;
    const auto submit = [&] {
      fdl_handle* handle = nullptr;
      FDL_EXPECT_OK(fdl_call_submit(me.comm, &call, nullptr, &handle));
      FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
      return handle;
    };
    fdl_handle_free(submit());
    device.synchronize();
    const std::lock_guard lock(turn);
    ASSERT_EQ(fake_cuda_begin_capture(device.stream()), 0);
    fdl_handle* const handle = submit();
    int done = 0;
    FDL_EXPECT_OK(fdl_poll_device(handle, &done));
    EXPECT_EQ(done, 1);
    fdl_handle_free(handle);
    EXPECT_GE(fake_cuda_end_capture(device.stream()), 1) << "the capture is valid";
  });
}

// The schedules wait for events of earlier collectives, which are outside of the graph.
TEST(DeviceCollectives, ByAnAlgorithmAreRefusedInACapture) {
  static std::mutex turn;  // the fake keeps only the last capture
  const Knobs ring{{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}, {"algorithm", "ring"}};
  run_ranks(2, ring, [&](World& me) {
    OwnDevice device(me.rank);
    int32_t* memory = device.put(numbers(me.rank, 300));
    fdl_call call = device.message(FDL_RECV, memory, 300, 0);
    call.collective = FDL_ALLREDUCE;
    call.input = memory;
    FDL_EXPECT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));
    device.synchronize();
    const std::lock_guard lock(turn);
    ASSERT_EQ(fake_cuda_begin_capture(device.stream()), 0);
    EXPECT_EQ(fdl_call_ex(me.comm, &call, nullptr, nullptr), FDL_UNSUPPORTED) << fdl_last_error()->text;
    EXPECT_EQ(fake_cuda_end_capture(device.stream()), 0) << "it is valid, and empty";
  });
}

// ---- refused calls leave all objects usable ----

void expect_refused(fdl_result result, fdl_result as, const std::string& words) {
  EXPECT_EQ(result, as);
  EXPECT_NE(std::string(fdl_last_error()->text).find(words), std::string::npos) << fdl_last_error()->text;
}

TEST(DevicePlaces, ErrorsNameDevicesThatDoNotExist) {
  run_ranks(2, kStaged, [](World& me) {
    OwnDevice device(me.rank);
    int32_t* memory = device.put({1, 2});
    for (const fdl_collective kind : {FDL_SEND, FDL_RECV, FDL_ALLREDUCE}) {
      fdl_call call = device.message(kind, memory, 2, 0);
      call.input = call.output = memory;
      const auto result = [&] { return fdl_call_ex(me.comm, &call, nullptr, nullptr); };
      call.device_index = -1;
      expect_refused(result(), FDL_INVALID_ARGUMENT, "device index -1 does not exist");
      call.device_index = 99;
      expect_refused(result(), FDL_INVALID_ARGUMENT, "99");
      call.device_kind = static_cast<fdl_device_kind>(7);
      expect_refused(result(), FDL_INVALID_ARGUMENT, "device kind 7 is not supported");
      call = device.message(kind, nullptr, 2, 0);
      expect_refused(result(), FDL_INVALID_ARGUMENT, "is NULL");
    }
    fdl_call send = device.message(FDL_SEND, memory, 2, 2);
    expect_refused(fdl_call_ex(me.comm, &send, nullptr, nullptr), FDL_INVALID_ARGUMENT, "peer 2 is not a rank");
    send = device.message(FDL_SEND, memory, static_cast<std::size_t>(-1), 0);
    expect_refused(fdl_call_ex(me.comm, &send, nullptr, nullptr), FDL_INVALID_ARGUMENT, "more than memory can hold");

    const int64_t shape[] = {2};
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.name = "nowhere";
    operation.input = {memory, FDL_INT32, 1, shape, FDL_DEVICE_CUDA, -1, nullptr};
    expect_refused(fdl_run(me.all, &operation, 1, -1, nullptr), FDL_INVALID_ARGUMENT, "device index -1 does not exist");
    operation.input.device_kind = FDL_DEVICE_CPU;
    expect_refused(fdl_run(me.all, &operation, 1, -1, nullptr), FDL_INVALID_ARGUMENT, "device index -1 does not exist");
    operation.input.device_kind = 7;
    expect_refused(fdl_run(me.all, &operation, 1, -1, nullptr), FDL_INVALID_ARGUMENT, "device kind 7 is not supported");

    int32_t one = 1, sum = 0;
    FDL_ASSERT_OK(fdl_allreduce(me.comm, &one, &sum, 1, FDL_INT32, FDL_SUM));
    EXPECT_EQ(sum, 2);
  });
}

}  // namespace
}  // namespace world_test
