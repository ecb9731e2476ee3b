// GroupDevice makes the device work of a group when its first tensor on a device runs, and keeps it for all later ones.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "engine/communicator.h"
#include "runtime/device/device_work.h"
#include "runtime/named/entry.h"

namespace fdl {

// The tensors of one group lie on one device of each rank, which submission has checked (Group::claim_device()). Only
// the thread that owns progress calls this class.
class GroupDevice {
 public:
  // `rank_name` is the name of this rank in error texts. `comm` outlives this object.
  GroupDevice(const Communicator& comm, std::string rank_name) : comm_(comm), rank_name_(std::move(rank_name)) {}

  // The work for a bucket: null for tensors on the CPU. An error if the device cannot be used, or if this rank has
  // joined before it used one. Once it was made it exists for all later buckets, so a later call has no error.
  Result<DeviceWork*> work_for(const PlannedBucket& planned) {
    if (planned.bucket->device < 0) return static_cast<DeviceWork*>(nullptr);
    if (!work_) FDL_RETURN_IF_ERROR(make_work(planned.entries));
    return work_.get();
  }

 private:
  Status make_work(const Entries& entries);

  const Communicator& comm_;
  const std::string rank_name_;
  std::unique_ptr<DeviceWork> work_;
};

}  // namespace fdl
