// SymmetricAllocationRun passes the memory to the entry's handle.
#include "runtime/named/bucket/symmetric_allocation_run.h"

#include "runtime/named/bucket/device_streams.h"

namespace fdl {

SymmetricAllocationRun::SymmetricAllocationRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry,
                                               DeviceWork* device)
    : BucketRun(std::move(planned), comm, telemetry), device_(device) {}

Status SymmetricAllocationRun::begin() {
  if (device_ == nullptr) {
    finish(Status(Code::unsupported, title_of(bucket()) + ": no rank of the group can use its device"));
    return {};
  }
  FDL_RETURN_IF_ERROR(begin_after_tensors(*device_, entries_));
  const Entry& entry = *entries_.front();
  allocation_ = {.bytes = entry.byte_count(), .stream = entry.place->stream()};
  operation().spec.device = &device_->device();
  operation().spec.stream = device_->stream();
  operation().memory = SymmetricRequest{&allocation_};
  comm_.start(operation());
  return {};
}

void SymmetricAllocationRun::continue_after_collective() {
  if (!allocation_.refusal.ok()) return finish(allocation_.refusal);
  if (const Status taken = take_allocation(); !taken.ok()) return fail_here(taken);
  finish({});
}

Status SymmetricAllocationRun::take_allocation() {
  FDL_RETURN_IF_ERROR(device_->device().fill_zero(device_->stream(), allocation_.memory->get(), allocation_.bytes));
  entries_.front()->result().symmetric_allocation = std::move(allocation_);
  return publish_results(*device_, entries_);
}

}  // namespace fdl
