// BenchGpu owns one rank's stream on its device. BareNccl calls NCCL on it as a program without farandole does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/gpu/ending.h"
#include "contract/device_library.h"
#include "cuda/cuda_device.h"
#include "system/poller.h"
#include "transports/nccl/nccl_device_library.h"
#include "transports/nccl/nccl_library.h"

namespace gpu_bench {

// Ranks are distributed over the devices round-robin; with one device all of them share it.
class BenchGpu {
 public:
  BenchGpu(const fdl::Config& config, int rank)
      : device_(stop_unless(
            fdl::open_cuda_device(rank % std::max(stop_unless(fdl::count_cuda_devices(config), kNone), 1), config),
            kNone)),
        stream_(stop_unless(device_->make_stream())),
        notifier_(stop_unless(fdl::Event::make())) {}
  ~BenchGpu() {
    for (void* memory : memory_) device_->release(memory);
    device_->end_stream(stream_);
  }

  fdl::Device& device() { return *device_; }
  fdl::Stream stream() const { return stream_; }
  // Zeroed memory that lives as long as this object.
  std::byte* allocate(std::size_t bytes) {
    memory_.push_back(stop_unless(device_->allocate(bytes)));
    stop_unless(device_->fill_zero(stream_, memory_.back(), bytes));
    return static_cast<std::byte*>(memory_.back());
  }
  // Blocks until the stream has finished all work queued so far.
  void finish() {
    stop_unless(device_->ring(stream_, notifier_));
    if (!fdl::wait_readable(notifier_.fd(), fdl::Deadline::after_seconds(60))) end(kWrong, "the stream hangs");
    notifier_.clear();
  }
  // Returns when the copy has ended, so `values` may be freed.
  void put(void* memory, const std::vector<float>& values) {
    stop_unless(device_->copy(stream_, memory, values.data(), values.size() * sizeof(float)));
    finish();
  }
  std::vector<float> get(const void* memory, std::size_t count) {
    std::vector<float> values(count);
    stop_unless(device_->copy(stream_, values.data(), memory, count * sizeof(float)));
    finish();
    return values;
  }

 private:
  std::shared_ptr<fdl::Device> device_;
  fdl::Stream stream_;
  fdl::Event notifier_;
  std::vector<void*> memory_;
};

// All ranks construct it together, since ncclCommInitRank blocks until all have called it.
class BareNccl {
 public:
  using Id = fdl::DeviceLibrary::Id;

  BareNccl(const fdl::Config& config, BenchGpu& gpu, int rank, int ranks, const Id& id)
      : gpu_(gpu), current_(gpu.device()), library_(stop_unless(fdl::NcclLibrary::open(config.nccl_library), kNone)) {
    fdl::nccl::UniqueId unique{};
    // The id comes from the same library, in which both types have 128 bytes.
    std::memcpy(&unique, id.data(), sizeof unique);
    fdl::nccl::ConfigOf218 settings;
    // Calls block until they are queued, as in a program that uses NCCL with its defaults.
    settings.blocking = 1;
    const auto outcome = library_->functions().CommInitRankConfig(&comm_, ranks, unique, rank, &settings);
    if (outcome != fdl::nccl::Outcome::success) end(kWrong, library_->text_for(outcome, nullptr));
  }
  ~BareNccl() { library_->functions().CommAbort(comm_); }
  BareNccl(const BareNccl&) = delete;
  BareNccl& operator=(const BareNccl&) = delete;

  // Sums floats in place; returns when the call is queued.
  void sum(void* memory, std::size_t count) {
    const auto outcome = library_->functions().AllReduce(memory, memory, count, fdl::nccl::Type::float32,
                                                         fdl::nccl::RedOp::sum, comm_, gpu_.stream());
    if (outcome != fdl::nccl::Outcome::success) end(kWrong, library_->text_for(outcome, comm_));
  }

 private:
  BenchGpu& gpu_;
  // One thread constructs, uses and destroys this object. The device stays current there, as in a program that uses
  // NCCL.
  const fdl::CurrentDevice current_;
  std::shared_ptr<const fdl::NcclLibrary> library_;
  fdl::nccl::Comm comm_ = nullptr;
};

// Rank 0 creates the id. Ends the benchmark if NCCL or enough GPUs are missing, before any other rank begins.
inline BareNccl::Id make_nccl_id(const fdl::Config& config, int ranks) {
  const auto library = stop_unless(fdl::open_nccl(config, ranks > 1), kNone);
  const int devices = stop_unless(fdl::count_cuda_devices(config), kNone);
  if (devices == 0) end(kNone, "there is no GPU here");
  if (ranks > devices && !library->shares_devices()) {
    end(kNone, std::to_string(ranks) + " ranks, but " + std::to_string(devices) + " GPU here, and " +
                   std::string(library->name()) + " does not let ranks share one, as NCCL 2.30 and newer do");
  }
  return stop_unless(library->make_id());
}

// The elements of a rank: small integers, whose sums over ranks are exact. is_sum() checks those sums.
inline std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 100 + static_cast<std::size_t>(rank));
  return values;
}
inline bool is_sum(const std::vector<float>& values, int ranks) {
  // The sum over ranks r of (i % 100 + r).
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<float>(static_cast<int>(i % 100) * ranks + ranks * (ranks - 1) / 2)) return false;
  }
  return true;
}

}  // namespace gpu_bench
