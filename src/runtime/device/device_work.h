// DeviceWork: what the buckets of one group queue on their device before and after their collectives, on a stream of
// the group's own, which waits for the tensors' streams and is waited for by them.
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

  // What is queued from now on comes after what the place's stream held when its operation was submitted.
  Status begin_after(const DevicePlace& place);
  // What is queued on the place's stream from now on comes after all that is queued here so far. finish() first, once
  // for all places of a bucket.
  Status finish();
  Status hand_over(const DevicePlace& place);

  // Where the tensors of a bucket lie side by side: what the communicator gave last; nothing before that. If that was
  // less than it was asked for, there is no more.
  DevicePacking::Scratch scratch;
  bool room_is_all = false;

  // As much memory for this rank alone; good until it is asked for again.
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
