// These tests cover CUDA devices through a fake driver: what each call does, in which order, and the text of every
// error.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstring>
#include <future>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_role.h"
#include "contract/device.h"
#include "cuda/cuda_device.h"
#include "cuda/memory_cache.h"
#include "tests/fakes/cuda/fake_cuda.h"

extern "C" int cuStreamSynchronize(void* stream);
extern "C" int cuStreamCreate(void** stream, unsigned flags);
extern "C" int cuStreamDestroy_v2(void* stream);
extern "C" int cuCtxGetCurrent(void** context);
extern "C" int cuPointerGetAttribute(void* value, int attribute, unsigned long long pointer);
extern "C" int cuThreadExchangeStreamCaptureMode(int* mode);

namespace fdl {
namespace {

using testing::HasSubstr;
using testing::Not;

Config fake_driver_config(const std::string& library = FDL_FAKE_CUDA) {
  Config config;
  config.cuda_library = library;
  return config;
}

// Another path of the same library, so that its first result, which is kept by name, does not count.
std::string another_name() {
  static int names = 0;
  std::string path = FDL_FAKE_CUDA;
  std::string dots = "/";
  for (int i = ++names; i > 0; --i) dots += "./";
  return path.replace(path.rfind('/'), 1, dots);
}

bool is_readable(const Event& event) {
  pollfd entry{event.fd(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

class CudaTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("FAKE_CUDA_DEVICES", "2", 1); }

  void SetUp() override { open(); }

  void TearDown() override {
    fake_cuda_go_on();
    fake_cuda_clear_failures();
    for (const Stream stream : streams_) device_->end_stream(stream);
    for (void* memory : memory_) device_->release(memory);
    device_ = nullptr;
    fake_cuda_fall_off(0, 0);
    fake_cuda_refuse_module(0);
    fake_cuda_driver_version(13000);
    fake_cuda_capability(90);
    fake_cuda_memory(std::size_t{8} << 30);
    EXPECT_EQ(fake_cuda_device_bytes(), 0u) << "memory of the device is lost";
    EXPECT_EQ(fake_cuda_pinned_bytes(), 0u) << "pinned memory is lost";
  }

  // Opens the device anew, for what happens while it is opened.
  void reopen() {
    device_ = nullptr;
    open();
  }
  void open() {
    auto opened = open_cuda_device(0, fake_driver_config());
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    device_ = opened.take();
  }

  Stream stream() {
    auto made = device_->make_stream();
    EXPECT_TRUE(made.ok()) << made.status().text();
    streams_.push_back(*made);
    return *made;
  }

  template <class T>
  T* on_device(const std::vector<T>& values) {
    auto memory = device_->allocate(values.size() * sizeof(T) + 1);
    EXPECT_TRUE(memory.ok()) << memory.status().text();
    memory_.push_back(*memory);
    fake_cuda_write(*memory, values.data(), values.size() * sizeof(T));
    return static_cast<T*>(*memory);
  }

  template <class T>
  std::vector<T> read(const T* memory, std::size_t count) {
    std::vector<T> values(count);
    fake_cuda_read(memory, values.data(), count * sizeof(T));
    return values;
  }

  std::shared_ptr<Device> device_;
  std::vector<Stream> streams_;
  std::vector<void*> memory_;
};

#define EXPECT_DONE(expression)                  \
  do {                                           \
    const Status status_ = (expression);         \
    EXPECT_TRUE(status_.ok()) << status_.text(); \
  } while (false)

// ---- Opening ----

TEST_F(CudaTest, HasANameAKindAndAnIdentity) {
  EXPECT_EQ(device_->name(), "cuda:0 (Fake GPU 0)");
  EXPECT_EQ(device_->kind(), 2);
  EXPECT_EQ(device_->index(), 0);
  auto other = open_cuda_device(1, fake_driver_config());
  ASSERT_TRUE(other.ok());
  EXPECT_NE(device_->identity(), (*other)->identity());
  EXPECT_EQ(*count_cuda_devices(fake_driver_config()), 2);
}

TEST_F(CudaTest, IsSharedByAllCallersThatOpenIt) {
  EXPECT_EQ(open_cuda_device(0, fake_driver_config()).take(), device_);
  const auto identity = device_->identity();
  device_ = nullptr;
  open();
  EXPECT_EQ(device_->identity(), identity);
}

TEST_F(CudaTest, KeepsTheThreadsCurrentContext) {
  void* before = &before;
  void* after = &after;
  cuCtxGetCurrent(&before);
  const Stream own = stream();
  int* const memory = on_device<int>({1, 2, 3});
  EXPECT_DONE(device_->fill_zero(own, memory, 4));
  fake_cuda_fail("cuMemcpyAsync", 1, 1);
  EXPECT_FALSE(device_->copy(own, memory, memory + 1, 4).ok());
  cuCtxGetCurrent(&after);
  EXPECT_EQ(before, after);
  EXPECT_EQ(after, nullptr);
  cuStreamSynchronize(own);
  const auto other = open_cuda_device(1, fake_driver_config()).take();
  const CurrentDevice outer(*other);
  void* const here = *device_->allocate(3 << 20);
  int ordinal = -1;
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, cuda::kPointerDeviceOrdinal, reinterpret_cast<uintptr_t>(here)), 0);
  EXPECT_EQ(ordinal, 0);
  device_->release(here);
}

// ---- Memory ----

TEST_F(CudaTest, MemoryIsAlignedAndReused) {
  void* const first = *device_->allocate(1000);
  void* const pinned = *device_->allocate_pinned(3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pinned) % 256, 0u);
  std::memset(pinned, 1, 3);
  device_->release(first);
  device_->release_pinned(pinned);
  const std::size_t calls = fake_cuda_calls("cuMemAlloc_v2") + fake_cuda_calls("cuMemHostAlloc");
  EXPECT_EQ(*device_->allocate(990), first);
  EXPECT_EQ(*device_->allocate_pinned(100), pinned);
  EXPECT_EQ(fake_cuda_calls("cuMemAlloc_v2") + fake_cuda_calls("cuMemHostAlloc"), calls);
  device_->release(first);
  device_->release_pinned(pinned);
  device_->release(nullptr);
}

TEST_F(CudaTest, AllocatesZeroBytes) {
  auto memory = device_->allocate(0);
  ASSERT_TRUE(memory.ok());
  device_->release(*memory);
}

TEST_F(CudaTest, ReleasedMemoryIsNotReusedWhileQueuedWorkUsesIt) {
  const Stream own = stream();
  void* const memory = *device_->allocate(5000);
  fake_cuda_hold();
  EXPECT_DONE(device_->fill_zero(own, memory, 5000));
  device_->release(memory);  // returns although the stream is held
  void* const other = *device_->allocate(5000);
  EXPECT_NE(other, memory);
  fake_cuda_go_on();
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(*device_->allocate(5000), memory);
  device_->release(memory);
  device_->release(other);
}

TEST_F(CudaTest, ReleasedMemoryWaitsForWorkOfEndedStreams) {
  auto made = device_->make_stream();
  void* const memory = *device_->allocate(5000);
  fake_cuda_hold();
  EXPECT_DONE(device_->fill_zero(*made, memory, 5000));
  device_->end_stream(*made);
  device_->release(memory);
  void* const other = *device_->allocate(5000);
  EXPECT_NE(other, memory);
  fake_cuda_go_on();
  device_->release(other);
}

TEST_F(CudaTest, IdleMemoryIsBounded) {
  std::vector<void*> all;
  for (int i = 0; i < 20; ++i) all.push_back(*device_->allocate(std::size_t{32} << 20));
  for (void* memory : all) device_->release(memory);
  EXPECT_LE(fake_cuda_device_bytes(), std::size_t{256} << 20);
}

// A kernel of NCCL that waits for a peer may be on the device, and the peer may wait for this thread.
TEST_F(CudaTest, FreesLargeMemoryWhileTheDeviceIsBusy) {
  for (const int has_pools : {1, 0}) {
    fake_cuda_pools(has_pools);
    reopen();
    const Stream own = *device_->make_stream();
    void* const large = *device_->allocate(std::size_t{300} << 20);
    fake_cuda_hold();
    ASSERT_EQ(fake_cuda_queue(
                  own, [](void*) {}, nullptr),
              0);
    auto released = std::async(std::launch::async, [&] { device_->release(large); });
    if (has_pools != 0) {
      EXPECT_EQ(released.wait_for(std::chrono::seconds(20)), std::future_status::ready);
      EXPECT_EQ(fake_cuda_device_bytes(), 0u);
    }
    fake_cuda_go_on();
    released.get();
    cuStreamSynchronize(own);
    device_->end_stream(own);
    EXPECT_EQ(fake_cuda_device_bytes(), 0u);
  }
  fake_cuda_pools(1);
}

// Such a thread drives all communicators of the world, also the one for which the device waits.
// Its own memory is of the driver's pool, and is freed without a wait.
TEST_F(CudaTest, AThreadOfTheLibraryFreesNoMemoryForWhichTheDriverWaits) {
  const auto allocate_much = [&] {
    std::vector<void*> all;
    for (int i = 0; i < 20; ++i) all.push_back(*device_->allocate(std::size_t{20} << 20));
    return all;
  };
  const auto release_all = [&](const std::vector<void*>& all) {
    for (void* memory : all) device_->release(memory);
  };
  const auto on_library_thread = [](auto work) {
    std::async(std::launch::async, [&] {
      is_library_thread = true;
      work();
    }).get();
  };
  const std::size_t before = fake_cuda_calls("cuMemFree_v2");
  const std::vector<void*> of_the_program = allocate_much();
  on_library_thread([&] { release_all(of_the_program); });
  EXPECT_EQ(fake_cuda_device_bytes(), std::size_t{400} << 20);
  on_library_thread([&] {
    std::vector<void*> more = allocate_much();  // idle blocks, and then one of the pool
    more.push_back(*device_->allocate(std::size_t{20} << 20));
    release_all(more);
  });
  EXPECT_EQ(fake_cuda_calls("cuMemFree_v2"), before);
  EXPECT_EQ(fake_cuda_device_bytes(), std::size_t{400} << 20) << "the block of the pool is gone";
  release_all(allocate_much());
  EXPECT_LE(fake_cuda_device_bytes(), std::size_t{256} << 20) << "a thread of the program frees the rest";
}

// The fake waits for the device in each allocation of pinned memory, as the driver may.
TEST_F(CudaTest, ReservedPinnedMemoryNeedsNoCall) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  EXPECT_DONE(device_->reserve_pinned(kBytes, 3));
  EXPECT_DONE(device_->reserve_pinned(kBytes, 3));
  const std::size_t before = fake_cuda_calls("cuMemHostAlloc");
  const Stream own = stream();
  fake_cuda_hold();
  EXPECT_DONE(device_->fill_zero(own, on_device<int>({1}), 4));
  std::vector<void*> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(*device_->allocate_pinned(kBytes));
  EXPECT_EQ(fake_cuda_calls("cuMemHostAlloc"), before);
  auto further = std::async(std::launch::async, [&] { return *device_->allocate_pinned(kBytes); });
  EXPECT_EQ(further.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout) << "it waits for the device";
  fake_cuda_go_on();
  taken.push_back(further.get());
  for (void* memory : taken) device_->release_pinned(memory);
}

TEST_F(CudaTest, StreamsHaveNumbersThatAreNotUsedAgain) {
  const Stream first = *device_->make_stream();
  const uint64_t id = device_->stream_id(first);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(device_->stream_id(first), id);
  EXPECT_NE(device_->stream_id(nullptr), id);
  device_->end_stream(first);
  const Stream second = *device_->make_stream();
  EXPECT_EQ(second, first) << "the fake uses the handle again";
  EXPECT_NE(device_->stream_id(second), id);
  device_->end_stream(second);
}

// Memory that work of the old stream uses is not handed out, although the new stream has its handle.
TEST_F(CudaTest, ReleasedMemoryWaitsForAForeignStreamWhoseHandleIsUsedAgain) {
  void* foreign = nullptr;
  const CurrentDevice current(*device_);
  ASSERT_EQ(cuStreamCreate(&foreign, 1), 0);
  void* const memory = *device_->allocate(5000);
  fake_cuda_hold();
  EXPECT_DONE(device_->fill_zero(foreign, memory, 5000));
  ASSERT_EQ(cuStreamDestroy_v2(foreign), 0);
  void* next = nullptr;
  ASSERT_EQ(cuStreamCreate(&next, 1), 0);
  ASSERT_EQ(next, foreign);
  EXPECT_DONE(device_->note_work(next));
  device_->release(memory);
  void* const other = *device_->allocate(5000);
  EXPECT_NE(other, memory);
  fake_cuda_go_on();
  device_->release(other);
  ASSERT_EQ(cuStreamDestroy_v2(next), 0);
}

TEST_F(CudaTest, LargeMemoryIsReusedAndReportsAShortage) {
  void* const first = *device_->allocate(std::size_t{64} << 20);
  device_->release(first);
  EXPECT_EQ(*device_->allocate(std::size_t{64} << 20), first);
  device_->release(first);
  fake_cuda_memory(std::size_t{100} << 20);
  const auto refused = device_->allocate(std::size_t{128} << 20);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().text(), HasSubstr("of the device's 104857600 are free"));
}

TEST(CudaMemory, SizesWasteAtMostAFifth) {
  for (std::size_t bytes = 4097; bytes < (std::size_t{1} << 40); bytes = bytes * 17 / 16 + 1) {
    EXPECT_GE(cuda::size_class(bytes), bytes);
    EXPECT_LE(cuda::size_class(bytes) * 4, bytes * 5 + 4);
    EXPECT_EQ(cuda::size_class(cuda::size_class(bytes)), cuda::size_class(bytes));
  }
  EXPECT_EQ(cuda::size_class(0), 4096u);
  EXPECT_EQ(cuda::size_class(std::size_t{64} << 20), std::size_t{64} << 20);
}

// ---- Streams, events, completion notifiers ----

TEST_F(CudaTest, AStreamWaitsForAnEventOfAnother) {
  const Stream first = stream(), second = stream();
  std::vector<int> source(1000, 7), target(1000, 0);
  int* const between = on_device(std::vector<int>(1000, 0));
  const DeviceEvent event = *device_->make_event();
  EXPECT_TRUE(*device_->reached(event)) << "an event that was never set is reached";
  fake_cuda_delay_us(2000);  // without the event the second stream would run first
  EXPECT_DONE(device_->copy(first, between, source.data(), 4000));
  EXPECT_DONE(device_->set(event, first));
  EXPECT_DONE(device_->wait(second, event));
  EXPECT_DONE(device_->copy(second, target.data(), between, 4000));
  ASSERT_EQ(cuStreamSynchronize(second), 0);
  fake_cuda_delay_us(0);
  EXPECT_EQ(target, source);
  EXPECT_TRUE(*device_->reached(event));
  device_->end_event(event);
  device_->end_event(nullptr);
  cuStreamSynchronize(first);
}

TEST_F(CudaTest, ANotifierRingsOnlyAfterAllQueuedWorkHasRun) {
  const Stream own = stream();
  auto notifier = Event::make();
  const DeviceEvent event = *device_->make_event();
  int* const memory = on_device<int>({5});
  fake_cuda_hold();
  EXPECT_DONE(device_->fill_zero(own, memory, 4));
  EXPECT_DONE(device_->set(event, own));
  EXPECT_DONE(device_->ring(own, *notifier));
  EXPECT_FALSE(*device_->reached(event));
  EXPECT_FALSE(is_readable(*notifier));
  fake_cuda_go_on();
  pollfd entry{notifier->fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 30000), 1);
  notifier->clear();
  EXPECT_TRUE(*device_->reached(event));
  EXPECT_EQ(read(memory, 1)[0], 0);
  device_->end_event(event);
  cuStreamSynchronize(own);
}

TEST_F(CudaTest, TheDefaultStreamWorksLikeOthers) {
  int* const memory = on_device<int>({1, 2});
  EXPECT_DONE(device_->fill_zero(nullptr, memory, 8));
  auto notifier = Event::make();
  EXPECT_DONE(device_->ring(nullptr, *notifier));
  pollfd entry{notifier->fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 30000), 1);
  notifier->clear();  // the thread that rang no longer uses it
  EXPECT_EQ(read(memory, 2), (std::vector<int>{0, 0}));
  device_->end_stream(nullptr);
}

TEST_F(CudaTest, DetectsCaptureAndAllocatesDuringIt) {
  const Stream recorded = stream();
  EXPECT_FALSE(*device_->is_captured(recorded));
  std::vector<float> ones(300, 1), twos(300, 2);
  float* const a = on_device(ones);
  float* const b = on_device(twos);
  float* const sum = on_device(std::vector<float>(300, 0));
  const DeviceEvent event = *device_->make_event();
  ASSERT_EQ(fake_cuda_begin_capture(recorded), 0);
  EXPECT_TRUE(*device_->is_captured(recorded));
  const void* sources[] = {a, b};
  EXPECT_DONE(device_->reduce(recorded, Dtype::float32, Op::sum, sum, sources, 300, 2.0));
  const DeviceSegment segments[] = {{a, 0, 100}, {b, 100, 100}};
  EXPECT_DONE(device_->pack(recorded, segments, Dtype::float32, sum, Dtype::float32, 1.0));
  // Calls that touch no captured stream must not invalidate the capture.
  void* const memory = *device_->allocate(1 << 20);
  void* const pinned = *device_->allocate_pinned(1 << 20);
  EXPECT_TRUE(*device_->reached(event));
  device_->release(memory);
  device_->release_pinned(pinned);
  EXPECT_EQ(fake_cuda_end_capture(recorded), 2);
  EXPECT_EQ(read(sum, 1)[0], 0) << "captured work does not run";
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(fake_cuda_launch_captured(recorded), 0);
    ASSERT_EQ(cuStreamSynchronize(recorded), 0);
    EXPECT_EQ(read(sum, 300)[0], 1);
    EXPECT_EQ(read(sum, 300)[150], 2);
    EXPECT_EQ(read(sum, 300)[250], 6);
  }
  device_->end_event(event);
}

// Memory that is released does not wait for work that runs only when the graph is launched.
TEST_F(CudaTest, DoesNotTrackTheWorkOfAGraphOnAStreamOfTheProgram) {
  const CurrentDevice current(*device_);
  void* recorded = nullptr;
  ASSERT_EQ(cuStreamCreate(&recorded, 1), 0);
  void* const memory = *device_->allocate(5000);
  ASSERT_EQ(fake_cuda_begin_capture(recorded), 0);
  EXPECT_DONE(device_->fill_zero(recorded, memory, 5000));
  device_->release(*device_->allocate(9000));
  EXPECT_EQ(fake_cuda_end_capture(recorded), 1);
  device_->release(memory);
  ASSERT_EQ(cuStreamDestroy_v2(recorded), 0);
}

// The fake punishes what the driver does: an end on a forked stream, and a forked stream that was not joined.
TEST_F(CudaTest, AFaultyCaptureEndsWithItsCode) {
  const Stream origin = stream(), forked = stream();
  int* const memory = on_device<int>({1, 2});
  const DeviceEvent event = *device_->make_event();
  for (const bool ends_on_the_fork : {true, false}) {
    ASSERT_EQ(fake_cuda_begin_capture(origin), 0);
    EXPECT_DONE(device_->set(event, origin));
    EXPECT_DONE(device_->wait(forked, event));
    EXPECT_DONE(device_->copy(forked, memory, memory + 1, 4));
    if (ends_on_the_fork) {
      EXPECT_EQ(fake_cuda_end_capture(forked), -903);
    }
    EXPECT_EQ(fake_cuda_end_capture(origin), ends_on_the_fork ? -901 : -904);
    EXPECT_NE(fake_cuda_launch_captured(origin), 0);
  }
  device_->end_event(event);
}

TEST_F(CudaTest, FreedAddressesAreUsedAgain) {
  constexpr std::size_t kTooLargeToKeep = std::size_t{300} << 20;
  void* const first = *device_->allocate(kTooLargeToKeep);
  device_->release(first);
  EXPECT_EQ(fake_cuda_device_bytes(), 0u);
  void* const second = *device_->allocate(kTooLargeToKeep);
  EXPECT_EQ(second, first);
  device_->release(second);
}

// ---- Work ----

TEST_F(CudaTest, CopiesInAllDirections) {
  const Stream own = stream();
  auto* const pinned = static_cast<int*>(*device_->allocate_pinned(4000));
  std::iota(pinned, pinned + 1000, 5);
  int* const first = on_device(std::vector<int>(1000, 0));
  int* const second = on_device(std::vector<int>(1000, 0));
  std::vector<int> back(1000, 0);
  EXPECT_DONE(device_->copy(own, first, pinned, 4000));
  EXPECT_DONE(device_->copy(own, second, first, 4000));
  EXPECT_DONE(device_->copy(own, back.data(), second, 4000));
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_TRUE(std::equal(back.begin(), back.end(), pinned));
  device_->release_pinned(pinned);
}

TEST_F(CudaTest, CopiesFromAnotherDeviceDirectly) {
  const Stream own = stream();
  auto other = open_cuda_device(1, fake_driver_config()).take();
  void* const there = *other->allocate(4000);
  std::vector<int> numbers(1000, 3);
  fake_cuda_write(there, numbers.data(), 4000);
  int* const here = on_device(std::vector<int>(1000, 0));
  const std::size_t before = fake_cuda_calls("cuCtxEnablePeerAccess");
  EXPECT_DONE(device_->copy(own, here, there, 4000));
  EXPECT_DONE(device_->copy(own, here, there, 4000));
  EXPECT_EQ(fake_cuda_calls("cuCtxEnablePeerAccess"), before + 1) << "peer access is enabled once";
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(here, 1000), numbers);
  other->release(there);
}

TEST_F(CudaTest, ReleasesTheContextOfAPeer) {
  const int before = fake_cuda_retained(1);
  auto other = open_cuda_device(1, fake_driver_config()).take();
  void* const there = *other->allocate(400);
  const Stream own = *device_->make_stream();
  void* const here = *device_->allocate(400);
  EXPECT_DONE(device_->copy(own, here, there, 400));
  EXPECT_EQ(fake_cuda_retained(1), before + 2) << "by the peer itself, and for the access to it";
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  device_->end_stream(own);
  device_->release(here);
  reopen();
  other->release(there);
  other = nullptr;
  EXPECT_EQ(fake_cuda_retained(1), before);
}

TEST_F(CudaTest, StaysCurrentOnAThreadOfTheLibrary) {
  const Stream own = stream();
  int* const memory = on_device<int>({1, 2, 3});
  static const char* const kCalls[] = {"cuCtxSetCurrent", "cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode"};
  std::thread([&] {
    is_library_thread = true;
    const DeviceEvent event = *device_->make_event();
    std::vector<std::size_t> before;
    for (const char* name : kCalls) before.push_back(fake_cuda_calls(name));
    for (int i = 0; i < 10; ++i) {
      EXPECT_DONE(device_->fill_zero(own, memory, 4));
      EXPECT_DONE(device_->set(event, own));
      EXPECT_TRUE(device_->reached(event).ok());
    }
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(fake_cuda_calls(kCalls[i]), before[i]) << kCalls[i];
    // Another device takes its place only until the end of the outermost scope.
    const auto other = open_cuda_device(1, fake_driver_config()).take();
    {
      const CurrentDevice outer(*other);
      const CurrentDevice inner(*device_);
      EXPECT_DONE(device_->set(event, own));
    }
    EXPECT_DONE(device_->set(event, own));
    device_->end_event(event);
  }).join();
  cuStreamSynchronize(own);
}

TEST_F(CudaTest, RelaxesTheCaptureModeOfAThreadOnlyForACall) {
  const Stream own = stream();
  const DeviceEvent event = *device_->make_event();
  EXPECT_DONE(device_->set(event, own));
  const std::size_t before = fake_cuda_calls("cuThreadExchangeStreamCaptureMode");
  EXPECT_TRUE(device_->reached(event).ok());
  EXPECT_EQ(fake_cuda_calls("cuThreadExchangeStreamCaptureMode"), before + 2);
  int mode = 0;
  cuThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, 0) << "global, as before";
  cuStreamSynchronize(own);
  device_->end_event(event);
}

TEST_F(CudaTest, EmptyWorkCallsNothingInTheDriver) {
  const Stream own = stream();
  float* const memory = on_device<float>({1});
  const auto calls = [] {
    return fake_cuda_calls("cuLaunchKernel") + fake_cuda_calls("cuMemcpyAsync") + fake_cuda_calls("cuMemsetD8Async");
  };
  const std::size_t before = calls();
  const void* sources[] = {memory, memory};
  const DeviceSegment segments[] = {{memory, 0, 0}, {memory, 0, 0}, {nullptr, 0, 0}};
  EXPECT_DONE(device_->copy(own, memory, memory, 4));
  EXPECT_DONE(device_->copy(own, nullptr, memory, 0));
  EXPECT_DONE(device_->fill_zero(own, memory, 0));
  EXPECT_DONE(device_->reduce(own, Dtype::float32, Op::sum, memory, sources, 0, 1.0));
  EXPECT_DONE(device_->pack(own, segments, Dtype::float32, memory, Dtype::float32, 1.0));
  EXPECT_DONE(device_->unpack(own, segments, Dtype::float32, memory, Dtype::float16, 2.0));
  EXPECT_DONE(device_->pack(own, {}, Dtype::float32, memory, Dtype::float32, 1.0));
  EXPECT_EQ(calls(), before);
}

TEST_F(CudaTest, PacksManyTensorsInOneLaunchAndUnpacksThem) {
  const Stream own = stream();
  std::vector<DeviceSegment> segments;
  std::vector<float> expected;
  std::size_t first = 0;
  for (int i = 0; i < 161; ++i) {
    std::vector<float> values(static_cast<std::size_t>(i * i % 977 + 1), static_cast<float>(i));
    segments.push_back({on_device(values), first, values.size()});
    expected.insert(expected.end(), values.begin(), values.end());
    first += values.size();
  }
  float* const packed = on_device(std::vector<float>(first, -1));
  std::size_t before = fake_cuda_calls("cuLaunchKernel");
  EXPECT_DONE(device_->pack(own, segments, Dtype::float32, packed, Dtype::float32, 1.0));
  EXPECT_EQ(fake_cuda_calls("cuLaunchKernel"), before + 1);
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(packed, first), expected);
  // Scaled on the way back.
  EXPECT_DONE(device_->unpack(own, segments, Dtype::float32, packed, Dtype::float32, 0.5));
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(static_cast<float*>(segments[160].tensor), 2)[1], 80.0f);
}

TEST_F(CudaTest, PacksInLowerPrecisionAndZerosForMissingTensors) {
  const Stream own = stream();
  float* const tensor = on_device<float>({1.5f, -2.0f, 65504.0f});
  auto* const packed = on_device(std::vector<uint16_t>(6, 0xffff));
  const DeviceSegment segments[] = {{tensor, 0, 3}, {nullptr, 3, 2}};
  EXPECT_DONE(device_->pack(own, segments, Dtype::float32, packed, Dtype::float16, 2.0));
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(packed, 6), (std::vector<uint16_t>{0x4200, 0xc400, 0x7c00, 0, 0, 0xffff}));
  EXPECT_DONE(device_->unpack(own, segments, Dtype::float32, packed, Dtype::float16, 0.5));
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(tensor, 2), (std::vector<float>{1.5f, -2.0f}));
}

TEST_F(CudaTest, ScalesIntegersTowardZeroAndKeepsBools) {
  const Stream own = stream();
  auto* const numbers = on_device<int8_t>({-3, 3, 100, -128});
  auto* const flags = on_device<uint8_t>({0, 1, 1, 0});
  auto* const packed = on_device(std::vector<int8_t>(4, 0));
  const DeviceSegment segment[] = {{numbers, 0, 4}};
  EXPECT_DONE(device_->pack(own, segment, Dtype::int8, packed, Dtype::int8, 1.5));
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(packed, 4), (std::vector<int8_t>{-4, 4, 127, -128}));
  const DeviceSegment flag[] = {{flags, 0, 2}, {flags + 2, 2, 2}};
  EXPECT_DONE(device_->pack(own, flag, Dtype::bool_, packed, Dtype::bool_, 1.5));
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(packed, 4), (std::vector<int8_t>{0, 1, 1, 0}));
}

TEST_F(CudaTest, ReducesToTheBitsOfTheCpu) {
  const Stream own = stream();
  std::mt19937 random(7);
  for (int d = 0; d < kDtypeCount; ++d) {
    const auto dtype = static_cast<Dtype>(d);
    const std::size_t count = 5003, bytes = count * size_of(dtype);
    std::vector<std::vector<uint8_t>> hosts(3, std::vector<uint8_t>(bytes));
    std::vector<const void*> on_host, on_devices;
    for (auto& host : hosts) {
      // These bytes are small numbers in every type, and never NaN, whose payload is not defined.
      for (uint8_t& byte : host) byte = static_cast<uint8_t>(random() & 0x3b);
      on_host.push_back(host.data());
      on_devices.push_back(on_device(host));
    }
    for (const Op op : {Op::sum, Op::max}) {
      for (const double factor : {1.0, 0.25, 1.0 / 3}) {
        std::vector<uint8_t> expected(bytes);
        reduce_many(dtype, {op}, expected.data(), on_host, count);
        scale(dtype, expected.data(), expected.data(), count, factor);
        auto* const target = on_device(std::vector<uint8_t>(bytes, 0));
        EXPECT_DONE(device_->reduce(own, dtype, op, target, on_devices, count, factor));
        ASSERT_EQ(cuStreamSynchronize(own), 0);
        EXPECT_EQ(read(target, bytes), expected) << name_of(dtype) << " " << name_of(op);
      }
    }
  }
}

TEST_F(CudaTest, ReducesOneVectorAndInPlace) {
  const Stream own = stream();
  float* const a = on_device<float>({1, 2, 3});
  float* const b = on_device<float>({10, 20, 30});
  const void* one[] = {a};
  EXPECT_DONE(device_->reduce(own, Dtype::float32, Op::sum, b, one, 3, 1.0));
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(b, 3), (std::vector<float>{1, 2, 3}));
  EXPECT_DONE(device_->reduce(own, Dtype::float32, Op::sum, b, one, 3, 2.0));
  const void* two[] = {a, b};
  EXPECT_DONE(device_->reduce(own, Dtype::float32, Op::average, a, two, 3, 0.5));
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(a, 3), (std::vector<float>{1.5, 3, 4.5}));
}

TEST_F(CudaTest, WorksFromSeveralThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const Stream own = *device_->make_stream();
      auto notifier = Event::make();
      for (int i = 0; i < 20; ++i) {
        auto* const pinned = static_cast<int*>(*device_->allocate_pinned(4096));
        void* const memory = *device_->allocate(4096);
        pinned[0] = t * 100 + i;
        pinned[1] = 0;
        EXPECT_DONE(device_->copy(own, memory, pinned, 4));
        EXPECT_DONE(device_->copy(own, pinned + 1, memory, 4));
        EXPECT_DONE(device_->ring(own, *notifier));
        pollfd entry{notifier->fd(), POLLIN, 0};
        EXPECT_EQ(::poll(&entry, 1, 30000), 1);
        notifier->clear();
        EXPECT_EQ(pinned[1], t * 100 + i);
        device_->release(memory);
        device_->release_pinned(pinned);
      }
      device_->end_stream(own);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- Errors: no usable driver ----

std::string refusal(const Result<std::shared_ptr<Device>>& opened) {
  EXPECT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), Code::unsupported);
  return opened.status().text();
}

TEST_F(CudaTest, ReportsWhatToInstallWithoutADriver) {
  EXPECT_THAT(refusal(open_cuda_device(0, fake_driver_config("/nowhere/libcuda.so.1"))),
              testing::AllOf(HasSubstr("/nowhere/libcuda.so.1"), HasSubstr("install NVIDIA's driver")));
  EXPECT_FALSE(count_cuda_devices(fake_driver_config("/nowhere/libcuda.so.1")).ok());
}

TEST_F(CudaTest, NamesALibraryThatIsNoDriver) {
  EXPECT_THAT(refusal(open_cuda_device(0, fake_driver_config("libm.so.6"))),
              HasSubstr("libm.so.6 is no CUDA driver: it has no cuInit"));
}

TEST_F(CudaTest, ReportsTheVersionOfATooOldDriver) {
  EXPECT_THAT(refusal(open_cuda_device(0, fake_driver_config(FDL_FAKE_CUDA_OLD))),
              HasSubstr("too old: it serves CUDA 9.2 and has no cuInit; 11.4 or newer is needed"));
}

TEST_F(CudaTest, ReportsADriverWithoutDevicesAndDoesNotRetry) {
  const std::string library = another_name();
  fake_cuda_fail("cuInit", 1, 100);
  EXPECT_THAT(refusal(open_cuda_device(0, fake_driver_config(library))), HasSubstr("the driver finds no device"));
  const std::size_t calls = fake_cuda_calls("cuInit");
  EXPECT_THAT(refusal(open_cuda_device(0, fake_driver_config(library))), HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(fake_cuda_calls("cuInit"), calls);
}

TEST_F(CudaTest, ReportsWhyADriverDoesNotStart) {
  fake_cuda_fail("cuInit", 1, 999);
  EXPECT_THAT(refusal(open_cuda_device(0, fake_driver_config(another_name()))),
              HasSubstr("cuInit: CUDA_ERROR_UNKNOWN (999): unknown error"));
}

TEST_F(CudaTest, RefusesADeviceThatDoesNotExist) {
  const auto opened = open_cuda_device(7, fake_driver_config());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), Code::invalid_argument);
  EXPECT_THAT(opened.status().text(), HasSubstr("cuda:7: there is no such device: 2 are visible to this process"));
  EXPECT_FALSE(open_cuda_device(-1, fake_driver_config()).ok());
}

TEST_F(CudaTest, ReportsTheFailureOfEachCallOfOpening) {
  device_ = nullptr;
  for (const char* call :
       {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRetain"}) {
    fake_cuda_fail(call, 1, 1);
    const auto opened = open_cuda_device(0, fake_driver_config());
    ASSERT_FALSE(opened.ok()) << call;
    const std::string name = call;
    EXPECT_THAT(opened.status().text(), HasSubstr(name.substr(0, name.find('_')) + ": CUDA_ERROR_INVALID_VALUE"));
  }
}

// ---- Errors: calls that the driver refuses ----

TEST_F(CudaTest, ReportsTheFailureOfEachCallWithItsNameAndTheDevice) {
  const Stream own = stream();
  int* const memory = on_device<int>({1, 2});
  const DeviceEvent event = *device_->make_event();
  auto notifier = Event::make();
  const void* sources[] = {memory, memory + 1};
  const DeviceSegment segments[] = {{memory, 0, 1}, {memory + 1, 1, 1}};
  const std::vector<std::pair<const char*, std::function<Status()>>> calls = {
      {"cuMemcpyAsync", [&] { return device_->copy(own, memory, memory + 1, 4); }},
      {"cuMemsetD8Async", [&] { return device_->fill_zero(own, memory, 4); }},
      {"cuEventRecord", [&] { return device_->set(event, own); }},
      {"cuStreamWaitEvent", [&] { return device_->wait(own, event); }},
      {"cuEventQuery", [&] { return device_->reached(event).status(); }},
      {"cuLaunchHostFunc", [&] { return device_->ring(own, *notifier); }},
      {"cuStreamIsCapturing", [&] { return device_->is_captured(own).status(); }},
      {"cuStreamCreateWithPriority", [&] { return device_->make_stream().status(); }},
      {"cuEventCreate", [&] { return device_->make_event().status(); }},
      {"cuMemHostAlloc", [&] { return device_->allocate_pinned(9000000).status(); }},
      {"cuMemAlloc_v2", [&] { return device_->allocate(9000000).status(); }},
      {"cuLaunchKernel", [&] { return device_->reduce(own, Dtype::int32, Op::sum, memory, sources, 1, 1.0); }},
      {"cuLaunchKernel", [&] { return device_->pack(own, segments, Dtype::int32, memory, Dtype::int32, 2.0); }},
      {"cuCtxPushCurrent_v2", [&] { return device_->set(event, own); }},
  };
  for (const auto& [call, run] : calls) {
    fake_cuda_fail(call, 1, 1);
    const Status failed = run();
    EXPECT_FALSE(failed.ok()) << call;
    const std::string name = call;
    EXPECT_THAT(failed.text(), testing::AllOf(HasSubstr("cuda:0 (Fake GPU 0): " + name.substr(0, name.find('_'))),
                                              HasSubstr("CUDA_ERROR_INVALID_VALUE (1): invalid argument")));
    fake_cuda_clear_failures();
    EXPECT_DONE(device_->set(event, own));  // the call failed, not the device
  }
  device_->end_event(event);
  ASSERT_EQ(cuStreamSynchronize(own), 0);
}

TEST_F(CudaTest, ReportsHowMuchMemoryIsFree) {
  fake_cuda_memory(10000);
  const auto memory = device_->allocate(1 << 20);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), Code::resource);
  EXPECT_THAT(memory.status().text(),
              testing::AllOf(HasSubstr("cuMemAlloc (1048576 bytes, where 10000 of the device's 10000 are free)"),
                             HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")));
}

TEST_F(CudaTest, FreesIdleMemoryBeforeItRunsOut) {
  fake_cuda_memory(1 << 20);
  void* const large = *device_->allocate(700000);
  device_->release(large);
  auto other = device_->allocate(400000);
  ASSERT_TRUE(other.ok()) << other.status().text();
  device_->release(*other);
}

TEST_F(CudaTest, ADestroyedStreamDoesNotFailTheDevice) {
  auto made = device_->make_stream();
  ASSERT_EQ(cuStreamDestroy_v2(*made), 0);
  int* const memory = on_device<int>({1});
  const Status failed = device_->fill_zero(*made, memory, 4);
  EXPECT_EQ(failed.code(), Code::invalid_argument);
  EXPECT_THAT(failed.text(), HasSubstr("was the stream destroyed"));
  EXPECT_DONE(device_->fill_zero(stream(), memory, 4));
}

TEST_F(CudaTest, RefusesUnsupportedWork) {
  const Stream own = stream();
  float* const memory = on_device<float>({1});
  std::vector<const void*> many(481, memory);
  const DeviceSegment segment[] = {{memory, 0, 1}};
  const std::vector<Status> refusals = {
      device_->reduce(own, Dtype::float32, Op::user, memory, many, 1, 1.0),
      device_->reduce(own, Dtype::float32, Op::bit_and, memory, many, 1, 1.0),
      device_->reduce(own, Dtype::float32, Op::sum, memory, many, 1, 1.0),
      device_->pack(own, segment, Dtype::float32, memory, Dtype::int32, 1.0),
      device_->unpack(own, segment, Dtype::bool_, memory, Dtype::uint8, 1.0),
  };
  for (const Status& refused : refusals) EXPECT_EQ(refused.code(), Code::unsupported);
  EXPECT_THAT(refusals[0].text(), HasSubstr("there is no user of float32 on devices"));
  EXPECT_THAT(refusals[2].text(), HasSubstr("sum of 481 vectors at once; 480 is the most"));
  EXPECT_THAT(refusals[3].text(), HasSubstr("float32 is not packed as int32"));
}

// ---- Errors: kernels ----

TEST_F(CudaTest, PacksByCopiesIfTheDriverRefusesTheKernels) {
  fake_cuda_refuse_module(222);
  reopen();
  const Stream own = stream();
  int* const a = on_device<int>({1, 2, 3});
  int* const b = on_device<int>({4, 5});
  int* const packed = on_device<int>({9, 9, 9, 9, 9, 9});
  const void* sources[] = {a, b};
  const Status refused = device_->reduce(own, Dtype::int32, Op::sum, packed, sources, 2, 1.0);
  EXPECT_EQ(refused.code(), Code::unsupported);
  EXPECT_THAT(refused.text(),
              testing::AllOf(HasSubstr("the driver (CUDA 13.0) accepts none of this build's kernels"),
                             HasSubstr("CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)"), HasSubstr("update the driver")));
  const std::size_t loads = fake_cuda_calls("cuModuleLoadData");
  const DeviceSegment segments[] = {{a, 0, 3}, {nullptr, 3, 1}, {b, 4, 2}};
  EXPECT_DONE(device_->pack(own, segments, Dtype::int32, packed, Dtype::int32, 1.0));
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(packed, 6), (std::vector<int>{1, 2, 3, 0, 4, 5}));
  const DeviceSegment swapped[] = {{b, 0, 2}, {nullptr, 3, 1}, {a, 3, 3}};
  EXPECT_DONE(device_->unpack(own, swapped, Dtype::int32, packed, Dtype::int32, 1.0));
  ASSERT_EQ(cuStreamSynchronize(own), 0);
  EXPECT_EQ(read(a, 3), (std::vector<int>{0, 4, 5}));
  EXPECT_EQ(device_->pack(own, segments, Dtype::int32, packed, Dtype::int32, 2.0).code(), Code::unsupported);
  EXPECT_EQ(fake_cuda_calls("cuModuleLoadData"), loads) << "the module is loaded once";
}

TEST_F(CudaTest, LoadsThePortableModuleIfTheFirstDoesNotFit) {
  fake_cuda_fail("cuModuleLoadData", 1, 209);
  reopen();
  const Stream own = stream();
  int* const a = on_device<int>({1, 2});
  const void* sources[] = {a, a + 1};
  const Status done = device_->reduce(own, Dtype::int32, Op::sum, a, sources, 1, 1.0);
  if (FDL_HAS_NVCC) {
    EXPECT_DONE(done);
  } else {
    EXPECT_THAT(done.text(), HasSubstr("no nvcc"));  // there is only one module
  }
  cuStreamSynchronize(own);
}

#if FDL_HAS_NVCC  // otherwise there is no compiled image
// Drivers before 550.54 (CUDA 12.4) do not read images that are compressed with zstd, as nvcc does from 12.8 on.
TEST_F(CudaTest, LoadsThePortableModuleInAnOldDriver) {
  for (const auto& [driver, capability] : {std::pair(11080, 90), std::pair(13000, 75), std::pair(13000, 120)}) {
    fake_cuda_driver_version(driver);
    fake_cuda_capability(capability);
    reopen();
    const Stream own = *device_->make_stream();
    void* const memory = *device_->allocate(8);
    const void* from[] = {memory, static_cast<int*>(memory) + 1};
    const Status done = device_->reduce(own, Dtype::int32, Op::sum, memory, from, 1, 1.0);
    EXPECT_TRUE(done.ok()) << done.text() << " with driver " << driver << " and capability " << capability;
    cuStreamSynchronize(own);
    device_->end_stream(own);
    device_->release(memory);
  }
}
#endif

TEST_F(CudaTest, ReportsABuildWithoutKernels) {
  fake_cuda_fail("cuModuleGetFunction", 1, 500);
  reopen();
  int* const a = on_device<int>({1, 2});
  const void* sources[] = {a, a + 1};
  const Status refused = device_->reduce(stream(), Dtype::int32, Op::sum, a, sources, 1, 1.0);
  EXPECT_EQ(refused.code(), Code::unsupported);
  EXPECT_THAT(refused.text(), testing::AllOf(HasSubstr("this build of farandole has no kernel fdl_copy_segments"),
                                             HasSubstr("kernels are compiled where nvcc is found")));
}

// Loading waits for the device, which may be busy with a kernel that waits for another rank.
TEST_F(CudaTest, LoadsTheKernelsBeforeTheFirstLaunch) {
  const Stream own = stream();
  const std::size_t loads = fake_cuda_calls("cuModuleLoadData");
  int* const a = on_device<int>({1, 2});
  const void* sources[] = {a, a + 1};
  EXPECT_DONE(device_->reduce(own, Dtype::int32, Op::sum, a, sources, 1, 1.0));
  EXPECT_EQ(fake_cuda_calls("cuModuleLoadData"), loads);
  cuStreamSynchronize(own);
}

// ---- Errors: the device itself ----

TEST_F(CudaTest, AFailedDeviceReturnsItsFirstFailureAndRingsNoNotifier) {
  const Stream own = stream();
  int* const memory = on_device<int>({1, 2});
  const DeviceEvent event = *device_->make_event();
  auto notifier = Event::make();
  fake_cuda_hold();
  EXPECT_DONE(device_->set(event, own));
  EXPECT_DONE(device_->ring(own, *notifier));
  fake_cuda_fall_off(0, 214);
  const auto reached = device_->reached(event);
  ASSERT_FALSE(reached.ok()) << "a caller that waits for the notifier finds the failure here";
  EXPECT_THAT(reached.status().text(),
              testing::AllOf(HasSubstr("cuda:0 (Fake GPU 0): cuEventQuery: CUDA_ERROR_ECC_UNCORRECTABLE (214)"),
                             HasSubstr("the device has failed for this process")));
  fake_cuda_go_on();
  fake_cuda_fall_off(0, 999);  // later calls would have other reasons
  for (const Status& later :
       {device_->copy(own, memory, memory + 1, 4), device_->allocate(8).status(), device_->make_stream().status(),
        device_->ring(own, *notifier), device_->reached(event).status()}) {
    EXPECT_EQ(later.text(), reached.status().text());
  }
  EXPECT_FALSE(is_readable(*notifier));
  device_->end_event(event);
}

TEST_F(CudaTest, AnIllegalAddressFailsTheDevice) {
  const Stream own = stream();
  int* const memory = on_device<int>({1});
  const DeviceEvent event = *device_->make_event();
  fake_cuda_hold();
  EXPECT_DONE(device_->copy(own, memory, memory + (1 << 20), 4));
  EXPECT_DONE(device_->set(event, own));
  fake_cuda_go_on();
  EXPECT_EQ(cuStreamSynchronize(own), 700);
  EXPECT_THAT(device_->reached(event).status().text(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
  EXPECT_FALSE(device_->allocate(8).ok());
  device_->end_event(event);
}

using CudaDeathTest = CudaTest;

TEST_F(CudaDeathTest, TheCpuCannotReadDeviceMemory) {
  const int* const memory = on_device<int>({1});
  EXPECT_DEATH(std::printf("%d\n", *const_cast<volatile const int*>(memory)), "");
}

}  // namespace
}  // namespace fdl
