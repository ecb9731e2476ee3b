// DeviceWork queues the work of one group's buckets on their device, before and after their collectives. It uses a
// stream of the group's own, which waits for the tensors' streams before the work. The thread that owns progress makes
// all calls, and none of them touches a stream of the caller.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "agree/negotiation/message.h"
#include "contract/device.h"
#include "engine/device/device_memory.h"
#include "runtime/device/device_packing.h"
#include "runtime/device/device_result.h"
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
  // The result behind the work that is queued here so far. Call once for a bucket.
  Result<std::shared_ptr<DeviceResult>> finish();

  // The scratch buffer in which the tensors of a bucket lie side by side: the last one that the communicator granted,
  // empty before the first request. If it was smaller than requested, the device has no more memory, and no larger one
  // is requested again.
  DevicePacking::Scratch scratch;
  bool scratch_is_at_limit = false;

  // Memory of this rank alone, for tensors that only other ranks have. The next call may free it.
  Result<void*> own_scratch(std::size_t bytes);

 private:
  DeviceWork(std::shared_ptr<UsedDevice> used, Stream stream) : used_(std::move(used)), stream_(stream) {}

  std::shared_ptr<UsedDevice> used_;
  Stream stream_;
  DeviceMemory own_scratch_;
};

}  // namespace fdl
