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
  const auto count = static_cast<std::size_t>(bucket().element_counts[next_]);
  if (!entries_[next_]) {
    std::memset(values_ + offset_, 0, count * size_of(work_));
  } else if (count > 0) {
    adasum_load(bucket().dtype, values_ + offset_, entries_[next_]->input, count, bucket().prescale);
  }
  if (step()) start_adasum();
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
  const auto count = static_cast<std::size_t>(bucket().element_counts[next_]);
  if (entries_[next_] && count > 0) {
    adasum_store(bucket().dtype, entries_[next_]->result().data, values_ + offset_, count, bucket().postscale);
  }
  if (step()) finish({});
}

// Returns whether the last tensor was copied; the next copy then begins again with the first one.
bool AdasumRun::step() {
  offset_ += static_cast<std::size_t>(bucket().element_counts[next_]) * size_of(work_);
  if (++next_ < entries_.size()) return false;
  next_ = 0;
  offset_ = 0;
  return true;
}

}  // namespace fdl
