// This file implements BucketRun for tensors on a device: it queues all work on the group's stream there, and the run
// is done for the host once everything is queued.
#include <cstring>

#include "runtime/named/bucket_run.h"

namespace fdl {

// Makes the group's stream wait for the work that the tensors' streams held at submission.
Status BucketRun::begin_on_device() {
  for (const auto& entry : entries_) {
    if (entry) FDL_RETURN_IF_ERROR(device_->begin_after(*entry->place));
  }
  return {};
}

void BucketRun::end_on_device() {
  const Status queued = packing_ ? unpack_on_device() : hand_over();
  if (!queued.ok()) fail_here(queued);
}

// Makes the tensors' streams wait for the results, and ends the run.
Status BucketRun::hand_over() {
  FDL_RETURN_IF_ERROR(device_->finish());
  for (const auto& entry : entries_) {
    if (entry) FDL_RETURN_IF_ERROR(device_->hand_over(*entry->place));
  }
  finish({});
  return {};
}

Status BucketRun::copy(void* target, const void* source, std::size_t bytes) {
  if (device_ != nullptr) return device_->device().copy(device_->stream(), target, source, bytes);
  std::memcpy(target, source, bytes);
  return {};
}

// Whether each tensor lies directly behind the one before in symmetric memory. They are then one vector and need no
// packing. The answer is the same on all ranks, because the places are equal there unless the bucket is `apart`.
bool BucketRun::lie_side_by_side(const Bucket& bucket, const std::vector<std::optional<Entry>>& entries) {
  if (bucket.apart) return false;
  int64_t next = -1;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i]) return false;
    const int64_t place = entries[i]->request.place;
    if (i > 0 && place != next) return false;
    next = SymmetricPlaces::behind(place, static_cast<std::size_t>(bucket.element_counts[i]) * size_of(bucket.dtype));
    if (next < 0) return false;
  }
  return true;
}

// Must match the memory that begin_allreduce() takes from the group launch. Other kinds need none.
GroupLaunch::Need BucketRun::need_of(const Bucket& bucket, const std::vector<std::optional<Entry>>& entries) {
  if (bucket.kind != RequestKind::allreduce) return {};
  const std::size_t bytes = bucket.element_count() * size_of(bucket.dtype);
  if (packs(bucket)) return {.packed = lie_side_by_side(bucket, entries) ? 0 : bytes};
  return {.own = entries.front() ? 0 : bytes};
}

// All ranks have run the same buckets, and so have scratch buffers of the same size. After a request has hit the
// device's limit, no larger buffer is requested for this group: memory that one rank frees later is not visible to the
// other ranks. The bucket then runs in rounds.
Status BucketRun::begin_fused_on_device() {
  if (lie_side_by_side(bucket_, entries_)) {
    Entry& first = *entries_.front();
    start_collective(operation_.spec, {first.input, first.handle->output(first.index).data});
    return {};
  }
  const std::size_t bytes = operation_.spec.count * size_of(bucket_.dtype);
  if (group_launch_ != nullptr) return begin_packing({group_launch_->next_packed(bytes), bytes});
  if (bytes <= device_->scratch.bytes || device_->room_is_all) return begin_packing(device_->scratch);
  operation_.spec.device = &device_->device();
  operation_.spec.stream = device_->stream();
  operation_.memory = ScratchRequest{bytes};
  stage_ = Stage::scratch;
  comm_.start(operation_);
  return {};
}

// Takes the granted buffer over, which may be smaller than requested, and packs into it.
void BucketRun::take_scratch() {
  if (!operation_.completion.status.ok()) return conclude(operation_.completion.status);
  const auto given = std::get<ScratchRequest>(std::exchange(operation_.memory, {}));
  device_->scratch = {given.memory, given.bytes};
  device_->room_is_all = device_->scratch.bytes < operation_.spec.count * size_of(bucket_.dtype);
  const Status packed = begin_packing(device_->scratch);
  if (!packed.ok()) fail_here(packed);
}

// The copies into and out of the scratch buffer apply the factors at no cost, so the collective runs without them. This
// requires that all ranks pack. A single tensor is packed only on ranks that do not have it, and there the factors stay
// with the collective.
Status BucketRun::begin_packing(DevicePacking::Scratch scratch) {
  CollectiveSpec& spec = operation_.spec;
  DevicePacking::Factors factors;
  if (packs()) factors = {std::exchange(spec.prescale, 1), std::exchange(spec.postscale, 1)};
  std::vector<DevicePacking::Tensor> tensors(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    tensors[i].count = static_cast<std::size_t>(bucket_.element_counts[i]);
    if (!entries_[i]) continue;
    tensors[i].input = entries_[i]->input;
    tensors[i].output = entries_[i]->handle->output(entries_[i]->index).data;
  }
  packing_.emplace(std::move(tensors), bucket_.dtype, scratch, factors);
  return pack_on_device();
}

Status BucketRun::pack_on_device() {
  enter(Stage::pack);
  FDL_RETURN_IF_ERROR(packing_->pack(device_->device(), device_->stream()));
  operation_.spec.count = packing_->count();
  start_collective(operation_.spec, {packing_->scratch(), packing_->scratch()});
  return {};
}

Status BucketRun::unpack_on_device() {
  enter(Stage::unpack);
  FDL_RETURN_IF_ERROR(packing_->unpack(device_->device(), device_->stream()));
  return packing_->done() ? hand_over() : pack_on_device();
}

// Requests symmetric memory for an entry with `holds`. The communicator fills symmetric_allocation_ in place.
Status BucketRun::begin_registration() {
  const Entry& entry = *entries_.front();
  if (device_ == nullptr) {
    finish(Status(Code::unsupported, title() + ": no rank of the group can use its device"));
    return {};
  }
  symmetric_allocation_ = {.bytes = entry.byte_count(), .stream = entry.place->stream()};
  operation_.spec.device = &device_->device();
  operation_.spec.stream = device_->stream();
  operation_.memory = SymmetricRequest{&symmetric_allocation_};
  stage_ = Stage::symmetric_allocation;
  comm_.start(operation_);
  return {};
}

// A refusal is the same on all ranks, so it fails this operation alone and the group continues. The new memory is
// filled with zeros.
Status BucketRun::take_registration() {
  if (!operation_.completion.status.ok()) {
    conclude(operation_.completion.status);
    return {};
  }
  if (!symmetric_allocation_.refusal.ok()) {
    finish(symmetric_allocation_.refusal);
    return {};
  }
  Entry& entry = *entries_.front();
  FDL_RETURN_IF_ERROR(
      device_->device().fill_zero(device_->stream(), symmetric_allocation_.memory->get(), symmetric_allocation_.bytes));
  entry.handle->output(entry.index).symmetric_allocation = std::move(symmetric_allocation_);
  end_on_device();
  return {};
}

}  // namespace fdl
