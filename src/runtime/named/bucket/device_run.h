// DeviceRun executes a bucket of tensors on a device. It queues all work on the group's stream there, and is done for
// the host once everything is queued; the streams of the threads that wait for the operations wait for the results.
//
// Several tensors are reduced side by side in the scratch buffer of the device. If that buffer is too small, the run
// requests a larger one. If the device has no more memory, the tensors go through the buffer in rounds. All ranks have
// run the same buckets, and so have scratch buffers of the same size and cut the same rounds.
#pragma once

#include <optional>

#include "runtime/device/device_packing.h"
#include "runtime/named/bucket/bucket_run.h"
#include "runtime/named/bucket/group_launch.h"

namespace fdl {

class DeviceRun final : public BucketRun {
 public:
  // `group_launch`: the launch that starts the collective, or null if this run starts it.
  DeviceRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry, DeviceWork& device,
            GroupLaunch* group_launch);

  // The memory that a bucket needs in a group launch.
  static GroupLaunch::Need need_of(const Bucket& bucket, const Entries& entries);

 private:
  Status begin() override;
  bool advance() override;
  void continue_after_collective() override;
  Status begin_allreduce();
  Status begin_fused();
  void request_scratch(std::size_t bytes);
  void take_scratch();
  Status begin_packing(DevicePacking::Scratch scratch);
  Status pack_round();
  Status unpack_round();
  Status publish();
  void start_on_device();

  DeviceWork& device_;
  GroupLaunch* group_launch_;  // null once the collective has been added to it
  bool scratch_requested_ = false;
  std::optional<DevicePacking> packing_;  // if the tensors are packed
};

}  // namespace fdl
