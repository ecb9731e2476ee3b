// SymmetricAllocationRun allocates symmetric memory on the devices of all ranks, for an entry with
// `allocates_symmetric`. The new memory is filled with zeros.
//
// A refusal is the same on all ranks, so it fails this operation alone and the group continues.
#pragma once

#include "runtime/named/bucket/bucket_run.h"

namespace fdl {

class SymmetricAllocationRun final : public BucketRun {
 public:
  // `device` is null if no rank of the group can use its device; the operation then fails as unsupported.
  SymmetricAllocationRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry, DeviceWork* device);

 private:
  Status begin() override;
  bool advance() override { return conclude_if_completed(); }
  void continue_after_collective() override;
  Status take_allocation();

  DeviceWork* const device_;
  SymmetricAllocation allocation_;  // the communicator fills it in place
};

}  // namespace fdl
