// HostDevice is a Device on host memory. Every stream is a thread, and host code that touches an address of the device
// crashes.
//
// The device's memory is mapped twice: at the device's addresses without access, and in a second mapping that the
// streams' threads use. Copies must be within that memory or between it and pinned memory; anything else is refused as
// a bug.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "contract/device.h"

namespace fdl::test {

class HostStream;

class HostDevice final : public Device {
 public:
  struct Options {
    int index = 0;
    std::size_t memory_bytes = std::size_t{64} << 20;
    uint64_t seed = 0;  // of random delays before some work, of at most most_delay_us
    int most_delay_us = 0;
  };
  HostDevice() : HostDevice(Options{}) {}
  explicit HostDevice(Options options);
  ~HostDevice() override;

  std::string_view name() const override { return name_; }
  int kind() const override { return 99; }
  int index() const override { return options_.index; }
  std::array<std::byte, 16> identity() const override;

  Result<void*> allocate(std::size_t bytes) override;
  void release(void* memory) override;
  void release_after(Stream, void* memory) override { release(memory); }
  Result<void*> allocate_pinned(std::size_t bytes) override;
  void release_pinned(void* memory) override;

  Result<Stream> make_stream() override;
  void end_stream(Stream stream) override;
  Result<bool> is_captured(Stream stream) override;
  Result<DeviceEvent> make_event() override;
  void end_event(DeviceEvent event) override;
  Status set(DeviceEvent event, Stream stream) override;
  Status wait(Stream stream, DeviceEvent event) override;
  Result<bool> reached(DeviceEvent event) override;
  Status ring(Stream stream, const Event& notifier) override;

  Status copy(Stream stream, void* target, const void* source, std::size_t bytes) override;
  Status fill_zero(Stream stream, void* target, std::size_t bytes) override;
  // Support equal types only; the engine uses neither.
  Status pack(Stream, std::span<const DeviceSegment>, Dtype, void*, Dtype, double) override;
  Status unpack(Stream, std::span<const DeviceSegment>, Dtype, const void*, Dtype, double) override;
  Status reduce(Stream stream, Dtype dtype, Op op, void* target, std::span<const void* const> sources,
                std::size_t count, double factor) override;

  // ---- For tests ----
  enum class Call {
    allocate,
    allocate_pinned,
    make_stream,
    make_event,
    set,
    wait,
    reached,
    ring,
    copy,
    reduce,
    captured
  };
  // Makes the nth call from now on (1: the next) and `behind` calls after it fail with `why`. A failed call that
  // returns something fails alone; any other fails the device.
  void fail_call(Call call, int nth, Status why, int behind = 0);
  // Makes the device fail before the nth copy or reduction from now on runs. Queued work then never runs.
  void fail_work(int nth, Status why);
  void fail(const Status& why);
  // Work that is queued on the stream after this waits until resume().
  void pause(Stream stream);
  void resume();
  void capture(Stream stream, bool on);
  // Releases memory that no work uses, so that it can be allocated again at once.
  void release_now(void* memory);
  // Waits until all queued work of the stream has run or the device has failed.
  Status synchronize(Stream stream);
  // Queues a function as work of the stream. It may block until failed() or another condition of its own.
  Status enqueue(Stream stream, std::function<void()> work);
  // The address at which work of streams can access the bytes of a device or host address.
  void* at(const void* address) const;
  // Copy from and to ordinary memory. Both wait for the stream.
  void upload(Stream stream, void* target, const void* source, std::size_t bytes);
  void download(Stream stream, void* target, const void* source, std::size_t bytes);
  bool failed() const;
  // Describes blocks, streams and events that were not released.
  std::string left_over() const;
  std::size_t pinned_bytes() const;
  int most_streams() const;

 private:
  friend class HostStream;
  struct Point {
    bool passed = false;
  };
  struct HostEvent {
    std::shared_ptr<Point> point;
  };

  bool is_device(const void* address) const;
  Status begin(Call call) FDL_REQUIRES(mutex_);
  Status fail_device(const Status& why) FDL_REQUIRES(mutex_);
  Status push(Stream stream, std::function<void()> work) FDL_REQUIRES(mutex_);
  void check_address(const void* address, std::size_t bytes) FDL_REQUIRES(mutex_);
  // Runs `end` after all work that is queued now.
  void after_all(std::function<void()> end) FDL_REQUIRES(mutex_);
  void before_work();

  const Options options_;
  const std::string name_;
  std::byte* addresses_ = nullptr;  // no access
  std::byte* bytes_ = nullptr;      // the same memory, accessible

  mutable Mutex mutex_;
  CondVar changed_;
  Status failure_ FDL_GUARDED_BY(mutex_);
  std::map<std::size_t, std::size_t> blocks_ FDL_GUARDED_BY(mutex_);  // of the device's memory: offset, bytes
  std::size_t blocks_held_ FDL_GUARDED_BY(mutex_) = 0;
  std::map<const std::byte*, std::size_t> pinned_ FDL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<HostStream>> streams_ FDL_GUARDED_BY(mutex_);
  std::set<Stream> live_streams_ FDL_GUARDED_BY(mutex_);
  std::set<Stream> captured_ FDL_GUARDED_BY(mutex_);
  std::set<HostEvent*> events_ FDL_GUARDED_BY(mutex_);
  struct Plan {
    int nth;
    Status why;
    int behind;
  };
  std::map<Call, Plan> planned_ FDL_GUARDED_BY(mutex_);
  int work_left_ FDL_GUARDED_BY(mutex_) = 0;  // until the planned failure; 0: none
  Status planned_failure_ FDL_GUARDED_BY(mutex_);
  uint64_t resumes_ FDL_GUARDED_BY(mutex_) = 0;
  std::mt19937_64 random_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl::test
