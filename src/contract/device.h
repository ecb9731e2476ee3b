// Device is the interface of an accelerator plug-in. It covers the accelerator's memory, its streams and the work that
// is queued on them.
//
// Work is queued on a stream and runs in the stream's order. No call waits for queued work, and no call allocates
// resources that an earlier call could have kept for reuse. Any thread may call, with any stream of this device,
// including a framework's own. A call leaves the calling thread's current device unchanged. The error of a call names
// the device.
// Once a device has failed, every call fails with that error. A waiter must also poll reached(): after a failure the
// notifier of ring() may never fire.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "contract/one_shot_sums.h"
#include "data/dtype.h"
#include "data/reduce.h"
#include "system/event.h"

namespace fdl {

// A stream of the device: one made here or a framework's own (CUstream). Null is the default stream.
using Stream = void*;
// A point in a stream that other streams or the host wait for (CUevent).
using DeviceEvent = void*;

// One tensor's part of a packed vector: elements [first, first + count).
struct DeviceSegment {
  void* tensor = nullptr;  // null: the tensor is missing; its part is packed as zeros and not unpacked
  std::size_t first = 0;
  std::size_t count = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;  // "cuda:0 (NVIDIA H100 80GB HBM3)"
  virtual int kind() const = 0;               // DLPack's number: 2 is CUDA
  virtual int index() const = 0;
  // Identifies the physical device: equal in all processes that use it, and unique across hosts.
  virtual std::array<std::byte, 16> identity() const = 0;

  // enter() makes this device the calling thread's current one, for libraries that depend on it; also after a failure,
  // so that they can end. After a success, leave() restores what enter() has noted. CurrentDevice calls both.
  struct Entered {
    void* outer = nullptr;
    bool changed = false;
  };
  virtual Status enter(Entered& /*entered*/) { return {}; }
  virtual void leave(const Entered& /*entered*/) {}

  // ---- memory ----
  // Of the device, and pinned memory of the host for fast copies. It is 256-byte aligned and not zeroed. A shortage
  // fails with RESOURCE. Work that is already queued may still use memory after its release.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  // Releases memory that others have used: work that they have queued on `stream` may still use it. The stream must
  // still exist.
  virtual void release_after(Stream stream, void* memory) = 0;
  // Counts the work that others have queued on `stream` as work that may still use released memory.
  virtual Status note_work(Stream /*stream*/) { return {}; }
  virtual Result<void*> allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(void* memory) = 0;
  // Makes sure that allocate_pinned() finds `count` idle blocks of this size, because a driver may wait for all work on
  // the device to allocate one. For the program's threads, before they hand work to the library's.
  virtual Status reserve_pinned(std::size_t /*bytes*/, int /*count*/) { return {}; }

  // ---- streams and events. A stream made here has high priority and does not wait for the default stream. ----
  virtual Result<Stream> make_stream() = 0;
  virtual void end_stream(Stream stream) = 0;
  // Returns whether the stream is being captured into a graph; work queued on it then does not run now.
  virtual Result<bool> is_captured(Stream stream) = 0;
  // A number that no other stream of the process has had, of a framework's stream too: its handle may be used again for
  // another one after its end. 0: the driver has no such numbers.
  virtual uint64_t stream_id(Stream /*stream*/) { return 0; }
  virtual Result<DeviceEvent> make_event() = 0;
  virtual void end_event(DeviceEvent event) = 0;
  // Places the event behind everything that is queued on the stream so far (cudaEventRecord).
  virtual Status set(DeviceEvent event, Stream stream) = 0;
  // Makes work that is queued on the stream from now on run after the point at which the event was last set.
  virtual Status wait(Stream stream, DeviceEvent event) = 0;
  // Returns whether the device has passed the event, or the device's failure.
  virtual Result<bool> reached(DeviceEvent event) = 0;
  // Triggers the notifier once everything that is queued on the stream so far has run. The caller keeps it alive until
  // then.
  virtual Status ring(Stream stream, const Event& notifier) = 0;

  // ---- work ----
  virtual Status copy(Stream stream, void* target, const void* source, std::size_t bytes) = 0;  // in any direction
  virtual Status fill_zero(Stream stream, void* target, std::size_t bytes) = 0;
  // packed[first + i] = factor * tensor[i] for all segments, in as few kernel launches as possible. If the two types
  // differ, both are real, and the product (or quotient) is rounded once, to nearest even. Factors work as in
  // scale() of data/reduce.h: 1.0 / n divides reals.
  virtual Status pack(Stream stream, std::span<const DeviceSegment> segments, Dtype tensors, void* packed,
                      Dtype in_packed, double factor) = 0;
  // tensor[i] = factor * packed[first + i].
  virtual Status unpack(Stream stream, std::span<const DeviceSegment> segments, Dtype tensors, const void* packed,
                        Dtype in_packed, double factor) = 0;
  // target[i] = factor * (sources[0][i] op sources[1][i] op ...). The result has the same bits as reduce_many followed
  // by scale of data/reduce.h. `target` may be one of the sources. A user's operation fails with UNSUPPORTED.
  virtual Status reduce(Stream stream, Dtype dtype, Op op, void* target, std::span<const void* const> sources,
                        std::size_t count, double factor) = 0;

  // The sums that the device runs together with others of its host; null: none. Lives as long as the device.
  virtual OneShotSums* one_shot_sums() { return nullptr; }
};

// Makes a device the calling thread's current one until the end of the scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(Device& device) : device_(device), outcome_(device.enter(entered_)) {}
  ~CurrentDevice() {
    if (outcome_.ok()) device_.leave(entered_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  const Status& outcome() const { return outcome_; }

 private:
  Device& device_;
  Device::Entered entered_;
  const Status outcome_;
};

}  // namespace fdl
