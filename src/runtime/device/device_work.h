// DeviceWork queues the work of one group's buckets on their device, before and after their collectives. It uses a
// stream of the group's own, which waits for the tensors' streams before the work and which they wait for after it.
// The thread that owns progress makes all calls.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "agree/negotiation/message.h"
#include "contract/device.h"
#include "engine/device/device_memory.h"
#include "runtime/device/device_packing.h"
#include "runtime/device/devices.h"

namespace fdl {

class DeviceWork {
 public:
  static Result<std::unique_ptr<DeviceWork>> make(std::shared_ptr<UsedDevice> used);
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  Device& device() { return used_->device(); }
  const std::shared_ptr<Device>& shared_device() const { return used_->shared(); }
  Stream stream() const { return stream_; }

  // Work that is queued from now on runs after the work that the place's stream had when its operation was submitted.
  Status begin_after(const DevicePlace& place);
  // finish() records an event behind the work that is queued here so far; hand_over() makes the place's stream wait for
  // it. Call finish() once for a bucket, then hand_over() for each of its places.
  Status finish();
  Status hand_over(const DevicePlace& place);

  // The scratch buffer in which the tensors of a bucket lie side by side: the last one that the communicator granted,
  // empty before the first request. If it was smaller than requested, the device has no more memory, and no larger one
  // is requested again.
  DevicePacking::Scratch scratch;
  bool scratch_is_at_limit = false;

  // Memory of this rank alone, for tensors that only other ranks have. The next call may free it.
  Result<void*> own_scratch(std::size_t bytes);

 private:
  DeviceWork(std::shared_ptr<UsedDevice> used, Stream stream, DeviceEvent finished)
      : used_(std::move(used)), stream_(stream), finished_(finished) {}

  std::shared_ptr<UsedDevice> used_;
  Stream stream_;
  DeviceEvent finished_;
  DeviceMemory own_scratch_;
};

}  // namespace fdl
