// GpuRank and run_gpu_group() give each rank of a test a GPU of the fake libcuda and libnccl. Ranks are threads of one
// process, or processes.
#pragma once

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "contract/device_library.h"
#include "cuda/cuda_device.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/support/collective_case.h"
#include "tests/support/ranks.h"
#include "transports/nccl/nccl_device_library.h"

namespace fdl::test {

// Must be set before the driver is opened for the first time.
inline const bool kEightGpus = ::setenv("FAKE_CUDA_DEVICES", "8", 1) == 0;

inline constexpr double kTimeoutSeconds = 60;

inline Config fake_config(std::map<std::string, std::string> options = {}) {
  options.try_emplace("cuda_library", FDL_FAKE_CUDA);
  options.try_emplace("nccl_library", FDL_FAKE_NCCL);
  return require(Config::read(Environment({}), options));
}

// World ranks differ from ranks, and every member has its own host name, so that errors that mix them up are noticed.
inline std::vector<Member> make_members(int size) {
  std::vector<Member> members;
  for (int r = 0; r < size; ++r) {
    members.push_back({10 + r, "host", std::string("host-") + static_cast<char>('a' + r), 0});
  }
  return members;
}

// Sleeps whenever there is nothing to do, so that a missing wake-up fails the test.
inline Status wait(Collectives& collectives, Completion& completion) {
  const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
  while (!completion.done) {
    if (collectives.progress()) continue;
    require(!deadline.passed(), "timed out waiting for " + collectives.phase());
    collectives.sleep_until_ready(deadline);
  }
  return completion.status;
}

// Drives the collectives until holds() returns true, and sleeps in between. `what` names the condition.
inline void drive_until(Collectives& collectives, const std::function<bool()>& holds, const std::string& what) {
  const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
  while (!holds()) {
    if (collectives.progress()) continue;
    require(!deadline.passed(), "timed out waiting until " + what);
    collectives.sleep_until_ready(deadline);
  }
}

class Gpu {
 public:
  explicit Gpu(int index, const Config& config)
      : device_(require(open_cuda_device(index, config))), stream_(require(device_->make_stream())) {}
  ~Gpu() {
    for (void* memory : memory_) device_->release(memory);
    device_->end_stream(stream_);
  }

  Device& device() { return *device_; }
  Stream stream() { return stream_; }
  // The memory lives as long as this object.
  std::byte* allocate(std::size_t bytes) {
    memory_.push_back(require(device_->allocate(std::max<std::size_t>(bytes, 1))));
    return static_cast<std::byte*>(memory_.back());
  }
  void synchronize() { synchronize(stream_); }
  void synchronize(Stream stream) {
    require(device_->ring(stream, notifier_));
    require(wait_readable(notifier_.fd(), Deadline::after_seconds(kTimeoutSeconds)), "a stream hangs");
    notifier_.clear();
  }

  template <typename T>
  T* put(const std::vector<T>& values) {
    auto* memory = allocate(values.size() * sizeof(T));
    fake_cuda_write(memory, values.data(), values.size() * sizeof(T));
    return reinterpret_cast<T*>(memory);
  }
  template <typename T>
  std::vector<T> get(const T* memory, std::size_t count) {
    std::vector<T> values(count);
    fake_cuda_read(memory, values.data(), count * sizeof(T));
    return values;
  }

 private:
  Event notifier_ = require(Event::make());  // outlives the streams that ring it
  std::shared_ptr<Device> device_;
  Stream stream_;
  std::vector<void*> memory_;
};

// One rank of a group that has joined by NCCL.
struct GpuRank {
  int rank;
  int size;
  DeviceLibrary& library;
  Gpu& gpu;
  std::unique_ptr<Collectives> collectives;

  CollectiveSpec on_stream(CollectiveSpec spec) const {
    spec.device = &gpu.device();
    spec.stream = gpu.stream();
    return spec;
  }
  Status call(const CollectiveSpec& spec, const void* input, void* output) {
    Completion completion;
    collectives->start(on_stream(spec), {input, output}, completion);
    return wait(*collectives, completion);
  }
  Status sum(const float* input, float* output, std::size_t count) { return call({.count = count}, input, output); }
};

// Runs a case with its buffers on the device. Returns "" or a description of the error.
inline std::string run_case(GpuRank& me, const CollectiveCase& c, bool deterministic = false) {
  fake_cuda_open_memory();
  CaseOnRank mine(c, me.rank, me.size, [&](std::size_t bytes) { return me.gpu.allocate(bytes); });
  fake_cuda_close_memory();
  CollectiveSpec spec = mine.spec();
  spec.deterministic = deterministic;
  const Status status = me.call(spec, mine.buffers().input, mine.buffers().output);
  if (!status.ok()) return c.text() + ": " + status.text();
  me.gpu.synchronize();
  fake_cuda_open_memory();
  const std::string mismatch = mine.mismatch();
  fake_cuda_close_memory();
  return mismatch.empty() ? "" : c.text() + " " + mismatch;
}

// Joins all ranks, each in a thread, and runs work(rank) on each.
inline void run_gpu_group(int size, const std::function<void(GpuRank&)>& work, const Config& config = fake_config()) {
  const auto library = require(open_nccl(config, false));
  const auto members = make_members(size);
  const auto id = require(library->make_id());
  run_ranks(size, [&](int rank) {
    Gpu gpu(rank, config);
    auto joined = require(library->join(id, rank, members, gpu.device(), Deadline::after_seconds(kTimeoutSeconds)));
    GpuRank me{rank, size, *library, gpu, std::move(joined)};
    work(me);
  });
}

}  // namespace fdl::test
