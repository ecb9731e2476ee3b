// AdasumRun loads the tensors, drives an Adasum and stores the results.
#include "runtime/named/bucket/adasum_run.h"

#include <cstring>

namespace fdl {

AdasumRun::AdasumRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry, FusionBuffer& fusion)
    : BucketRun(std::move(planned), comm, telemetry), fusion_(fusion), work_(adasum_works_in(bucket().dtype)) {}

Status AdasumRun::begin() {
  FDL_RETURN_IF_ERROR(prepare_allreduce(comm_, bucket(), entries_, nullptr, collective_));
  FDL_ASSIGN_OR_RETURN(values_, fusion_.at_least(2 * bucket().element_count() * size_of(work_)));
  record(Activity::pack);
  return {};
}

bool AdasumRun::advance() {
  switch (stage_) {
    case Stage::load:
      load_next();
      return true;
    case Stage::adasum:
      if (!adasum_->done()) return adasum_->progress();
      conclude(adasum_->status());
      return true;
    case Stage::store:
      store_next();
      return true;
  }
  return false;
}

void AdasumRun::load_next() {
  const std::size_t count = count_of_next();
  const auto& entry = entries_[next_.index()];
  if (!entry) {
    std::memset(values_ + next_.offset(), 0, count * size_of(work_));
  } else if (count > 0) {
    adasum_load(bucket().dtype, values_ + next_.offset(), entry->input, count, bucket().prescale);
  }
  if (next_.move_past(count * size_of(work_), entries_.size())) start_adasum();
}

void AdasumRun::start_adasum() {
  std::vector<std::size_t> ends;
  for (const int64_t count : bucket().element_counts) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + static_cast<std::size_t>(count));
  }
  std::byte* const scratch = values_ + ends.back() * size_of(work_);
  adasum_.emplace(comm_, work_, std::move(ends), values_, scratch);
  stage_ = Stage::adasum;
  record(Activity::adasum);
}

void AdasumRun::continue_after_collective() {
  stage_ = Stage::store;
  record(Activity::unpack);
}

void AdasumRun::store_next() {
  const std::size_t count = count_of_next();
  const auto& entry = entries_[next_.index()];
  if (entry && count > 0) {
    adasum_store(bucket().dtype, entry->result().data, values_ + next_.offset(), count, bucket().postscale);
  }
  if (next_.move_past(count * size_of(work_), entries_.size())) finish({});
}

std::size_t AdasumRun::count_of_next() const {
  return static_cast<std::size_t>(bucket().element_counts[next_.index()]);
}

}  // namespace fdl
