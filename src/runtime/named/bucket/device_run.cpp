// DeviceRun decides where on the device the tensors are reduced: where they lie, in the scratch buffer, or in zeros of
// this rank alone.
#include "runtime/named/bucket/device_run.h"

#include <utility>

#include "runtime/device/symmetric_places.h"
#include "runtime/named/bucket/device_streams.h"

namespace fdl {
namespace {

// Whether the tensors go through the scratch buffer; the same on all ranks.
bool is_packed(const Bucket& bucket) { return bucket.names.size() > 1 || bucket.apart; }

// The bytes that the tensors need side by side; the same on all ranks.
std::size_t packed_bytes(const Bucket& bucket) {
  return DevicePacking::elements_of(bucket.element_counts, bucket.dtype) * size_of(bucket.dtype);
}

// Whether each tensor lies directly behind the one before in symmetric memory. They are then one vector and need no
// packing. The answer is the same on all ranks, because the places are equal there unless the bucket is `apart`.
bool lie_side_by_side(const Bucket& bucket, const Entries& entries) {
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

}  // namespace

DeviceRun::DeviceRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry, DeviceWork& device,
                     GroupLaunch* group_launch)
    : BucketRun(std::move(planned), comm, telemetry), device_(device), group_launch_(group_launch) {}

// Must match the memory that begin_allreduce() takes from the group launch. Other kinds need none.
GroupLaunch::Need DeviceRun::need_of(const Bucket& bucket, const Entries& entries) {
  if (bucket.kind != RequestKind::allreduce) return {};
  if (is_packed(bucket)) return {.packed = lie_side_by_side(bucket, entries) ? 0 : packed_bytes(bucket)};
  return {.own = entries.front() ? 0 : packed_bytes(bucket)};
}

// The device is entered once for all that is queued.
Status DeviceRun::begin() {
  const CurrentDevice current(device_.device());
  FDL_RETURN_IF_ERROR(begin_after_tensors(device_, entries_));
  if (bucket().kind == RequestKind::allreduce) return begin_allreduce();
  FDL_RETURN_IF_ERROR(prepare_collective(comm_, bucket(), *entries_.front(), &device_, collective_));
  start_on_device();
  return {};
}

// If only this rank lacks a single tensor, the zeros lie in memory of this rank alone.
Status DeviceRun::begin_allreduce() {
  FDL_RETURN_IF_ERROR(prepare_allreduce(comm_, bucket(), entries_, &device_, collective_));
  if (is_packed(bucket())) return begin_fused();
  if (entries_.front()) {
    operation().buffers = {entries_.front()->input, entries_.front()->result().data};
    start_on_device();
    return {};
  }
  const std::size_t bytes = operation().spec.count * size_of(bucket().dtype);
  FDL_ASSIGN_OR_RETURN(void* zeros,
                       group_launch_ == nullptr ? device_.own_scratch(bytes) : group_launch_->next_own(bytes));
  return begin_packing({zeros, bytes});
}

// After a request has hit the device's limit, no larger buffer is requested for this group: memory that one rank frees
// later is not visible to the other ranks.
Status DeviceRun::begin_fused() {
  if (lie_side_by_side(bucket(), entries_)) {
    operation().buffers = {entries_.front()->input, entries_.front()->result().data};
    start_on_device();
    return {};
  }
  const std::size_t bytes = packed_bytes(bucket());
  if (group_launch_ != nullptr) return begin_packing({group_launch_->next_packed(bytes), bytes});
  if (bytes <= device_.scratch.bytes || device_.scratch_is_at_limit) return begin_packing(device_.scratch);
  request_scratch(bytes);
  return {};
}

void DeviceRun::request_scratch(std::size_t bytes) {
  operation().spec.device = &device_.device();
  operation().spec.stream = device_.stream();
  operation().memory = ScratchRequest{bytes};
  scratch_requested_ = true;
  comm_.start(operation());
}

// Takes the granted buffer over, which may be smaller than requested, and packs into it.
void DeviceRun::take_scratch() {
  scratch_requested_ = false;
  if (!operation().completion.status.ok()) return conclude(operation().completion.status);
  const auto granted = std::get<ScratchRequest>(std::exchange(operation().memory, {}));
  device_.scratch = {granted.memory, granted.bytes};
  device_.scratch_is_at_limit = granted.bytes < packed_bytes(bucket());
  const Status packed = begin_packing(device_.scratch);
  if (!packed.ok()) fail_here(packed);
}

// The copies into and out of the scratch buffer apply the factors at no cost, so the collective runs without them. This
// requires that all ranks pack. A single tensor is packed only on ranks that do not have it, and there the factors stay
// with the collective.
Status DeviceRun::begin_packing(DevicePacking::Scratch scratch) {
  CollectiveSpec& spec = operation().spec;
  DevicePacking::Factors factors;
  if (is_packed(bucket())) factors = {std::exchange(spec.prescale, 1), std::exchange(spec.postscale, 1)};
  std::vector<DevicePacking::Tensor> tensors(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    tensors[i].count = static_cast<std::size_t>(bucket().element_counts[i]);
    if (!entries_[i]) continue;
    tensors[i].input = entries_[i]->input;
    tensors[i].output = entries_[i]->result().data;
  }
  packing_.emplace(std::move(tensors), bucket().dtype, scratch, factors);
  return pack_round();
}

// Packs one round and starts its collective.
Status DeviceRun::pack_round() {
  record(Activity::pack);
  FDL_RETURN_IF_ERROR(packing_->pack(device_.device(), device_.stream()));
  operation().spec.count = packing_->count();
  operation().buffers = {packing_->scratch(), packing_->scratch()};
  start_on_device();
  return {};
}

// Unpacks the round and begins the next one.
Status DeviceRun::unpack_round() {
  record(Activity::unpack);
  FDL_RETURN_IF_ERROR(packing_->unpack(device_.device(), device_.stream()));
  return packing_->done() ? publish() : pack_round();
}

Status DeviceRun::publish() {
  FDL_RETURN_IF_ERROR(publish_results(device_, entries_));
  finish({});
  return {};
}

// Starts the collective, or adds it to the group launch, which then starts it.
void DeviceRun::start_on_device() {
  operation().spec.device = &device_.device();
  operation().spec.stream = device_.stream();
  start_collective(std::exchange(group_launch_, nullptr));
}

bool DeviceRun::advance() {
  if (!scratch_requested_ || !operation().completion.done) return conclude_if_completed();
  const CurrentDevice current(device_.device());
  take_scratch();
  return true;
}

void DeviceRun::continue_after_collective() {
  const CurrentDevice current(device_.device());
  const Status queued = packing_ ? unpack_round() : publish();
  if (!queued.ok()) fail_here(queued);
}

}  // namespace fdl
