// The C API on devices: messages, and how tensors that lie nowhere are refused; ranks as threads, on the stand-in for
// CUDA.
#include <cstdlib>
#include <numeric>

#include "cuda/cuda_device.h"
#include "system/poller.h"
#include "tests/support/standin_cuda.h"
#include "tests/support/worlds.h"

namespace world_test {
namespace {

// Before the driver is opened for the first time.
const bool kFourDevices = ::setenv("STANDIN_CUDA_DEVICES", "4", 1) == 0;

const Knobs kStaged{{"cuda_library", FDL_STANDIN_CUDA}, {"device_collectives", "staged"}};

// A rank's device as its program uses it: a stream of its own, and numbers there.
class OwnDevice {
 public:
  explicit OwnDevice(int index) {
    auto config = fdl::Config::read(fdl::Environment({}), {{"cuda_library", FDL_STANDIN_CUDA}});
    device_ = fdl::open_cuda_device(index, *config).take();
    stream_ = device_->make_stream().take();
    index_ = index;
  }
  ~OwnDevice() {
    for (void* memory : memory_) device_->release(memory);
    device_->end_stream(stream_);
  }

  int32_t* put(const std::vector<int32_t>& values) {
    void* memory = device_->allocate(values.size() * 4 + 4).take();
    memory_.push_back(memory);
    standin_cuda_write(memory, values.data(), values.size() * 4);
    return static_cast<int32_t*>(memory);
  }
  // Behind all that the stream has been given.
  std::vector<int32_t> get(const int32_t* memory, std::size_t count) {
    EXPECT_TRUE(device_->ring(stream_, bell_).ok());
    EXPECT_TRUE(fdl::wait_readable(bell_.fd(), fdl::Deadline::after_seconds(60))) << "the stream hangs";
    bell_.clear();
    std::vector<int32_t> values(count);
    standin_cuda_read(memory, values.data(), count * 4);
    return values;
  }
  void queue_copy(int32_t* target, const int32_t* source, std::size_t count) {
    EXPECT_TRUE(device_->copy(stream_, target, source, count * 4).ok());
  }
  fdl_call message(fdl_collective kind, int32_t* memory, std::size_t count, int peer) const {
    fdl_call call;
    fdl_call_init(&call);
    call.collective = kind;
    (kind == FDL_SEND ? const_cast<void*&>(call.input) : call.output) = memory;
    call.count = count;
    call.dtype = FDL_INT32;
    call.root = peer;
    call.device_kind = FDL_DEVICE_CUDA;
    call.device_index = index_;
    call.stream = stream_;
    return call;
  }

 private:
  fdl::Event bell_ = fdl::Event::make().take();  // outlives the stream
  std::shared_ptr<fdl::Device> device_;
  fdl::Stream stream_ = nullptr;
  int index_ = 0;
  std::vector<void*> memory_;
};

std::vector<int32_t> numbers(int rank, std::size_t count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), rank * 1000);
  return values;
}

TEST(DeviceMessages, GoRoundTheRanks) {
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

// Each side lies where it likes; both ways block.
TEST(DeviceMessages, MeetMemoryOfTheHost) {
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

// What the stream still has to do when the message is sent comes first.
TEST(DeviceMessages, FallInLineWithTheStream) {
  run_ranks(2, kStaged, [](World& me) {
    constexpr std::size_t kCount = 300;
    OwnDevice device(me.rank);
    int32_t* memory = device.put(numbers(1, kCount));
    if (me.rank == 0) {
      const int32_t* newer = device.put(numbers(2, kCount));
      standin_cuda_hold();
      device.queue_copy(memory, newer, kCount);
      const fdl_call send = device.message(FDL_SEND, memory, kCount, 1);
      fdl_request* request = nullptr;
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &send, nullptr, &request));
      standin_cuda_go_on();
      FDL_ASSERT_OK(fdl_wait(request));
    } else {
      const fdl_call recv = device.message(FDL_RECV, memory, kCount, 0);
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &recv, nullptr, nullptr));
      EXPECT_EQ(device.get(memory, kCount), numbers(2, kCount));
    }
  });
}

// ---- What is refused leaves everything usable

void expect_refused(fdl_result result, fdl_result as, const std::string& words) {
  EXPECT_EQ(result, as);
  EXPECT_NE(std::string(fdl_last_error()->text).find(words), std::string::npos) << fdl_last_error()->text;
}

TEST(DevicePlaces, AreNamedWhereTheyAreNone) {
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
