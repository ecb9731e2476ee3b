// TrialRun starts its operation twice, unless all elements run on trial.
#include "runtime/named/bucket/trial_run.h"

#include <algorithm>
#include <cstring>

namespace fdl {

TrialRun::TrialRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry, FusionBuffer& fusion)
    : BucketRun(std::move(planned), comm, telemetry), fusion_(fusion) {}

Status TrialRun::begin() {
  FDL_RETURN_IF_ERROR(prepare_allreduce(comm_, bucket(), entries_, nullptr, collective_));
  count_ = operation().spec.count;
  trial_count_ = std::min(count_, kTrialBytes / size_of(bucket().dtype));
  const std::size_t bytes = trial_count_ * size_of(bucket().dtype);
  if (entries_.front()) {
    source_ = static_cast<const std::byte*>(entries_.front()->input);
    target_ = static_cast<std::byte*>(entries_.front()->result().data);
    if (source_ == target_) {
      FDL_ASSIGN_OR_RETURN(kept_, fusion_.at_least(bytes));
      std::memcpy(kept_, source_, bytes);
    }
  } else {
    // Only a bucket that is withdrawn begins without its tensor, so no further elements follow.
    FDL_ASSIGN_OR_RETURN(target_, fusion_.at_least(bytes));
    std::memset(target_, 0, bytes);
    source_ = target_;
  }
  start_elements(0, trial_count_);
  return {};
}

// Starts the collective for `count` elements from element `from` on.
void TrialRun::start_elements(std::size_t from, std::size_t count) {
  const std::size_t offset = from * size_of(bucket().dtype);
  operation().spec.count = count;
  operation().buffers = {source_ + offset, target_ + offset};
  begun_count_ = from + count;
  start_collective();
}

void TrialRun::continue_after_collective() {
  begun_count_ == count_ ? finish({}) : start_elements(begun_count_, count_ - begun_count_);
}

void TrialRun::restore_inputs() {
  if (kept_ != nullptr) std::memcpy(target_, kept_, trial_count_ * size_of(bucket().dtype));
}

}  // namespace fdl
