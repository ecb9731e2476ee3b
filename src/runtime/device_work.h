// DeviceWork: what the buckets of one group queue on their device before and after their collectives, on a stream of
// the group's own, which waits for the tensors' streams and is waited for by them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "agree/message.h"
#include "contract/device.h"
#include "runtime/devices.h"

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

  // Memory in which tensors lie side by side; kept from bucket to bucket, and good until it is asked for again. Where
  // the device has no more, it is the host's, which the device reaches slowly: what the ranks have agreed upon goes on.
  Result<void*> packed(std::size_t bytes);

 private:
  DeviceWork(std::shared_ptr<UsedDevice> used, Stream stream, Mark finished)
      : used_(std::move(used)), stream_(stream), finished_(finished) {}

  void release_packed();

  std::shared_ptr<UsedDevice> used_;
  Stream stream_;
  Mark finished_;
  void* packed_ = nullptr;
  bool pinned_ = false;  // packed_ is the host's
  std::size_t capacity_ = 0;
};

}  // namespace fdl
