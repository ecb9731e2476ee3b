// start_bucket() chooses the class that runs a bucket, and starts it.
#pragma once

#include <memory>

#include "runtime/named/bucket/bucket_run.h"
#include "runtime/named/bucket/fusion_buffer.h"
#include "runtime/named/bucket/group_launch.h"

namespace fdl {

// `device`: the device of the tensors, null for the CPU. `group_launch`: the launch that starts the collective on the
// device, or null if the run starts it. The bucket is no error. All references outlive the run.
std::unique_ptr<BucketRun> start_bucket(PlannedBucket planned, Communicator& comm, FusionBuffer& fusion,
                                        NamedTelemetry& telemetry, DeviceWork* device, GroupLaunch* group_launch);

}  // namespace fdl
