// Device: memory that the CPU neither reads nor writes by itself, its streams, and the work that is queued on them:
// what a plug-in for an accelerator promises.
//
// Work is queued on a stream and runs in the stream's order; no call here waits for it, and none allocates what a call
// before it could have kept. Any thread may call, with any stream of this device, a framework's own too; nothing is
// changed that the calling thread could notice (which device is its current one). An error of a call names the device.
// Once a device has failed, everything fails with that error: whoever waits asks reached(), for a bell may stay silent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "data/dtype.h"
#include "data/reduce.h"
#include "system/event.h"

namespace fdl {

// A stream of the device, a framework's own (CUstream) or one made here; null: the default stream.
using Stream = void*;
// A point in a stream that others wait for (CUevent).
using DeviceEvent = void*;

// Some elements of a vector that is made of many tensors: `count` elements of the packed vector, from `first` on.
struct DeviceSegment {
  void* tensor = nullptr;  // null: nobody's; packed as zeros, not unpacked
  std::size_t first = 0;
  std::size_t count = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;  // "cuda:0 (NVIDIA H100 80GB HBM3)"
  virtual int kind() const = 0;               // DLPack's number: 2 is CUDA
  virtual int index() const = 0;
  // The same in all processes that use the same device, and nowhere else in the world.
  virtual std::array<std::byte, 16> identity() const = 0;

  // For libraries that work on the calling thread's current device: from enter(), if that succeeds, to leave() it is
  // this one.
  virtual Status enter() { return {}; }
  virtual void leave() {}

  // ---- memory: of the device, and of the host as fast copies want it (pinned). 256-byte aligned, not zeroed. RESOURCE
  // when it is short; what is queued when memory is released may still use it.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  // The same for what others have worked with: what they queued on that stream, which still exists, may still use it.
  virtual void release_after(Stream stream, void* memory) = 0;
  virtual Result<void*> allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(void* memory) = 0;

  // ---- streams and marks. A stream made here is urgent, and does not wait for the default stream.
  virtual Result<Stream> make_stream() = 0;
  virtual void end_stream(Stream stream) = 0;
  // Whether what is queued on it is being recorded into a graph, and does not run now.
  virtual Result<bool> is_captured(Stream stream) = 0;
  virtual Result<DeviceEvent> make_event() = 0;
  virtual void end_event(DeviceEvent event) = 0;
  virtual Status set(DeviceEvent event, Stream stream) = 0;
  // What is queued on the stream from now on runs after the mark where it was last set.
  virtual Status wait(Stream stream, DeviceEvent event) = 0;
  // Whether the device has passed the mark; the device's failure, once it has one.
  virtual Result<bool> reached(DeviceEvent event) = 0;
  // Rings once everything that is queued on the stream so far has run. The bell outlives that.
  virtual Status ring(Stream stream, const Event& notifier) = 0;

  // ---- work
  virtual Status copy(Stream stream, void* target, const void* source, std::size_t bytes) = 0;  // in any direction
  virtual Status fill_zero(Stream stream, void* target, std::size_t bytes) = 0;
  // packed[first + i] = factor * tensor[i] for all pieces at once, in as few launches as there can be. Where the types
  // differ both are real, and the product is rounded once, to nearest even; factors work as scale() of data/reduce.h.
  virtual Status pack(Stream stream, std::span<const DeviceSegment> segments, Dtype tensors, void* packed,
                      Dtype in_packed, double factor) = 0;
  // tensor[i] = factor * packed[first + i].
  virtual Status unpack(Stream stream, std::span<const DeviceSegment> segments, Dtype tensors, const void* packed,
                        Dtype in_packed, double factor) = 0;
  // target[i] = factor * (sources[0][i] op sources[1][i] op ...): the bits of reduce_many and then scale of
  // data/reduce.h. `target` may be one of the sources. UNSUPPORTED for a user's operation.
  virtual Status reduce(Stream stream, Dtype dtype, Op op, void* target, std::span<const void* const> sources,
                        std::size_t count, double factor) = 0;
};

}  // namespace fdl
