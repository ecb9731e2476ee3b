// start_bucket() depends on the bucket's kind, on its device, and on whether it is provisional.
#include "runtime/named/bucket/start_bucket.h"

#include "runtime/named/bucket/adasum_run.h"
#include "runtime/named/bucket/device_run.h"
#include "runtime/named/bucket/host_run.h"
#include "runtime/named/bucket/symmetric_allocation_run.h"
#include "runtime/named/bucket/trial_run.h"

namespace fdl {
namespace {

std::unique_ptr<BucketRun> make_run(PlannedBucket planned, Communicator& comm, FusionBuffer& fusion,
                                    NamedTelemetry& telemetry, DeviceWork* device, GroupLaunch* group_launch) {
  const Bucket& bucket = *planned.bucket;
  const bool is_allreduce = bucket.kind == RequestKind::allreduce;
  if (is_allreduce && static_cast<Op>(bucket.op) == Op::adasum) {
    return std::make_unique<AdasumRun>(std::move(planned), comm, telemetry, fusion);
  }
  if (bucket.kind == RequestKind::broadcast && planned.entries.front()->allocates_symmetric) {
    return std::make_unique<SymmetricAllocationRun>(std::move(planned), comm, telemetry, device);
  }
  if (device != nullptr && has_collective(bucket)) {
    return std::make_unique<DeviceRun>(std::move(planned), comm, telemetry, *device, group_launch);
  }
  if (is_allreduce && planned.provisional && bucket.names.size() == 1) {
    return std::make_unique<TrialRun>(std::move(planned), comm, telemetry, fusion);
  }
  return std::make_unique<HostRun>(std::move(planned), comm, telemetry, fusion);
}

}  // namespace

std::unique_ptr<BucketRun> start_bucket(PlannedBucket planned, Communicator& comm, FusionBuffer& fusion,
                                        NamedTelemetry& telemetry, DeviceWork* device, GroupLaunch* group_launch) {
  auto run = make_run(std::move(planned), comm, fusion, telemetry, device, group_launch);
  run->start();
  return run;
}

}  // namespace fdl
