// OwnDevice is a rank's device of the fake libcuda as a program uses it, for tests through the C API.
#pragma once

#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "cuda/cuda_device.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/device/synchronize_stream.h"
#include "tests/support/worlds.h"

namespace world_test {

// Must be set before the driver is opened for the first time.
inline const bool kFourDevices = ::setenv("FAKE_CUDA_DEVICES", "4", 1) == 0;

inline const Knobs kStaged{{"cuda_library", FDL_FAKE_CUDA}, {"device_collectives", "staged"}};

class OwnDevice {
 public:
  explicit OwnDevice(int index) {
    auto config = fdl::Config::read(fdl::Environment({}), {{"cuda_library", FDL_FAKE_CUDA}});
    device_ = fdl::open_cuda_device(index, *config).take();
    stream_ = device_->make_stream().take();
    index_ = index;
  }
  ~OwnDevice() {
    for (void* memory : memory_) device_->release(memory);
    device_->end_stream(stream_);
  }

  template <typename T = int32_t>
  T* put(const std::vector<T>& values) {
    void* memory = device_->allocate((values.size() + 1) * sizeof(T)).take();
    memory_.push_back(memory);
    fake_cuda_write(memory, values.data(), values.size() * sizeof(T));
    return static_cast<T*>(memory);
  }
  // Waits for the stream and then reads.
  template <typename T>
  std::vector<T> get(const T* memory, std::size_t count) {
    synchronize();
    std::vector<T> values(count);
    fake_cuda_read(memory, values.data(), count * sizeof(T));
    return values;
  }
  // Waits for the stream and then releases everything that put() allocated.
  void release() {
    synchronize();
    for (void* memory : std::exchange(memory_, {})) device_->release(memory);
  }
  // Waits until all work on the stream has run.
  void synchronize() { synchronize(stream_); }
  void synchronize(fdl::Stream stream) { synchronize_stream(*device_, stream, notifier_); }
  fdl::Device& device() { return *device_; }
  fdl::Stream stream() const { return stream_; }
  int index() const { return index_; }
  void queue_copy(int32_t* target, const int32_t* source, std::size_t count) {
    EXPECT_TRUE(device_->copy(stream_, target, source, count * 4).ok());
  }
  // Queues so much work that code which does not wait for the stream runs far ahead of it.
  void queue_much(int32_t* memory) {
    for (int i = 0; i < 50; ++i) queue_copy(memory, memory + 1, 1);
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
  fdl_tensor tensor(void* memory, fdl_dtype dtype, const int64_t* shape) const {
    return {memory, dtype, 1, shape, FDL_DEVICE_CUDA, index_, stream_};
  }

 private:
  fdl::Event notifier_ = fdl::Event::make().take();  // outlives the stream
  std::shared_ptr<fdl::Device> device_;
  fdl::Stream stream_ = nullptr;
  int index_ = 0;
  std::vector<void*> memory_;
};

inline std::vector<int32_t> numbers(int rank, std::size_t count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), rank * 1000);
  return values;
}

}  // namespace world_test
