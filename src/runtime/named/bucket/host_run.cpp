// HostRun packs and unpacks by one tensor for each call. Between these stages it waits for the communicator.
#include "runtime/named/bucket/host_run.h"

namespace fdl {

HostRun::HostRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry, FusionBuffer& fusion)
    : BucketRun(std::move(planned), comm, telemetry), fusion_(fusion) {}

Status HostRun::begin() {
  if (bucket().kind == RequestKind::allreduce) return begin_allreduce();
  if (!has_collective(bucket())) {
    begin_without_collective();
    return {};
  }
  FDL_RETURN_IF_ERROR(prepare_collective(comm_, bucket(), *entries_.front(), nullptr, collective_));
  start_collective();
  return {};
}

// The agreement of all ranks on a plan is the barrier already. A provisional bucket has no such agreement.
void HostRun::begin_without_collective() {
  if (is_provisional() && bucket().kind == RequestKind::barrier) {
    operation().spec = {.collective = Collective::barrier, .dtype = bucket().dtype};
    return start_collective();
  }
  for (auto& entry : entries_) {
    if (entry) entry->result().last_joined = bucket().last_joined;
  }
  finish({});
}

// If this rank does not have a single tensor, it contributes zeros from the fusion buffer.
Status HostRun::begin_allreduce() {
  FDL_RETURN_IF_ERROR(prepare_allreduce(comm_, bucket(), entries_, nullptr, collective_));
  if (entries_.size() == 1 && entries_.front() && !bucket().apart) {
    operation().buffers = {entries_.front()->input, entries_.front()->result().data};
    start_collective();
    return {};
  }
  if (!is_provisional() && comm_.takes_segments(operation().spec)) {
    list_segments();
    operation().buffers = {.segments = segments_};
    start_collective();
    return {};
  }
  FDL_ASSIGN_OR_RETURN(std::byte * buffer, fusion_.at_least(operation().spec.count * size_of(bucket().dtype)));
  packing_.emplace(bucket(), entries_, buffer);
  stage_ = Stage::pack;
  record(Activity::pack);
  return {};
}

// Missing tensors contribute zeros and receive no output: their pointers are null.
void HostRun::list_segments() {
  segments_.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Segment segment{.bytes = static_cast<std::size_t>(bucket().element_counts[i]) * size_of(bucket().dtype)};
    if (entries_[i]) {
      segment.input = entries_[i]->input;
      segment.output = entries_[i]->result().data;
    }
    segments_.push_back(segment);
  }
}

bool HostRun::advance() {
  switch (stage_) {
    case Stage::pack:
      if (!packing_->pack_next()) return true;
      stage_ = Stage::collective;
      operation().buffers = {packing_->buffer(), packing_->buffer()};
      start_collective();
      return true;
    case Stage::collective:
      return conclude_if_completed();
    case Stage::unpack:
      if (packing_->unpack_next()) finish({});
      return true;
  }
  return false;
}

void HostRun::continue_after_collective() {
  if (!packing_) return finish({});
  stage_ = Stage::unpack;
  record(Activity::unpack);
}

}  // namespace fdl
