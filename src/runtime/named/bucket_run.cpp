// This file implements BucketRun for tensors on the CPU, and the steps that do not depend on where the tensors lie: it
// turns each kind of named operation into a collective of the communicator.
#include "runtime/named/bucket_run.h"

#include <cstring>
#include <numeric>

#include "runtime/named/average.h"

namespace fdl {
namespace {

// How many bytes of a single tensor run on trial. If the tensor is reduced in place they are copied first, so a trial
// must be much cheaper than the reduction of a large tensor.
constexpr std::size_t kTrialBytes = 64 * 1024;

// The number of elements of the dimensions `from` and up; of one row if `from` is 1.
std::size_t product(const std::vector<int64_t>& shape, std::size_t from = 0) {
  std::size_t count = 1;
  for (std::size_t i = from; i < shape.size(); ++i) count *= static_cast<std::size_t>(shape[i]);
  return count;
}

}  // namespace

std::size_t Entry::element_count() const { return product(request.shape); }

// Begins at once. An error leaves the run in Stage::done, with the communicator interrupted.
BucketRun::BucketRun(std::shared_ptr<const Bucket> bucket, std::vector<std::optional<Entry>> entries,
                     Communicator& comm, FusionBuffer& fusion, const std::unique_ptr<Trace>& trace, bool on_trial,
                     DeviceWork* device, GroupLaunch* group_launch)
    : shared_bucket_(std::move(bucket)),
      bucket_(*shared_bucket_),
      entries_(std::move(entries)),
      comm_(comm),
      fusion_(fusion),
      trace_(trace),
      device_(device),
      group_launch_(group_launch),
      on_trial_(on_trial) {
  Status begun = device_ == nullptr ? Status() : begin_on_device();
  if (begun.ok()) begun = begin();
  if (!begun.ok()) fail_here(begun);
}

std::string BucketRun::title() const {
  std::string title(name_of(bucket_.kind));
  if (!bucket_.names.empty()) title += " '" + bucket_.names.front() + "'";
  if (fused()) title += " and " + std::to_string(bucket_.names.size() - 1) + " more";
  return title;
}

// Starts the collective of the bucket's kind, or finishes the run if there is none.
Status BucketRun::begin() {
  switch (bucket_.kind) {
    case RequestKind::allreduce:
      return is_adasum() ? begin_adasum() : begin_allreduce();
    case RequestKind::broadcast:
      return begin_broadcast();
    case RequestKind::allgather:
      return begin_allgather();
    case RequestKind::alltoall:
      return begin_alltoall();
    case RequestKind::reduce_scatter:
      return begin_reduce_scatter();
    case RequestKind::barrier:
      if (on_trial_) {
        start_collective({.collective = Collective::barrier}, {});
        return {};
      }
      break;  // the agreement of all ranks on the plan is the barrier already
    case RequestKind::join:
      break;
  }
  for (auto& entry : entries_) {
    if (entry) entry->handle->output(entry->index).last_joined = bucket_.last_joined;
  }
  finish({});
  return {};
}

// Hands the collective to the group launch, if there is one, or to the communicator. This object must stay where it is
// until the collective completes, because the communicator refers to operation_.
void BucketRun::start_collective(CollectiveSpec spec, Buffers buffers) {
  spec.dtype = bucket_.dtype;
  spec.root = bucket_.root;
  spec.counts = counts_;
  spec.recv_counts = recv_counts_;
  if (device_ != nullptr) {
    spec.device = &device_->device();
    spec.stream = device_->stream();
  }
  operation_.spec = spec;
  operation_.buffers = buffers;
  if (trace_) trace_->collective(spec.collective, comm_.runner_of(spec));
  stage_ = Stage::collective;
  GroupLaunch* const group_launch = std::exchange(group_launch_, nullptr);
  group_launch == nullptr ? comm_.start(operation_) : group_launch->add(operation_);
}

// Returns the memory for the result: the caller's, or newly allocated memory that the handle owns.
Result<void*> BucketRun::make_output(Entry& entry, std::vector<int64_t> shape) {
  Handle::Output& output = entry.handle->output(entry.index);
  output.shape = std::move(shape);
  output.data = entry.output;
  if (entry.output == nullptr) {
    const std::size_t bytes = product(output.shape) * size_of(bucket_.dtype);
    if (device_ != nullptr) {
      FDL_ASSIGN_OR_RETURN(void* allocated, device_->device().allocate(bytes));
      output.memory = OwnedMemory(allocated, {device_->shared_device(), entry.place->stream()});
    } else {
      output.memory = allocate_aligned(bytes);
    }
    output.data = output.memory.get();
    if (output.data == nullptr) {
      return Status(Code::resource, title() + ": no memory for an output of " + std::to_string(bytes) + " bytes");
    }
  }
  return output.data;
}

// ---- Allreduce ----

// An average runs as a sum with a postscale (average.h).
void BucketRun::set_reduction(CollectiveSpec& spec) const {
  const auto op = static_cast<Op>(bucket_.op);
  spec.reduction.op = folding(op);
  spec.prescale = bucket_.prescale;
  spec.postscale = bucket_.postscale * postscale_of(op, bucket_.dtype, comm_.size());
}

// The outputs are made first, because they may be allocated and
// the collective must not start if that fails.
Status BucketRun::begin_allreduce() {
  CollectiveSpec& spec = operation_.spec;
  spec.collective = Collective::allreduce;
  set_reduction(spec);
  spec.count = bucket_.element_count();
  for (auto& entry : entries_) {
    if (!entry) continue;
    FDL_ASSIGN_OR_RETURN([[maybe_unused]] void* output, make_output(*entry, entry->request.shape));
  }
  if (on_trial_ && !fused()) return begin_allreduce_on_trial();
  // A single tensor needs no packing. If this rank does not have it, the rank contributes zeros from a buffer.
  if (!packs() && entries_.front()) {
    Entry& entry = *entries_.front();
    start_collective(spec, {entry.input, entry.handle->output(entry.index).data});
    return {};
  }
  if (device_ != nullptr && packs()) return begin_fused_on_device();
  if (device_ != nullptr) {  // only this rank lacks the tensor, so the zeros lie in memory of this rank alone
    const std::size_t bytes = spec.count * size_of(bucket_.dtype);
    FDL_ASSIGN_OR_RETURN(void* zeros,
                         group_launch_ == nullptr ? device_->own_scratch(bytes) : group_launch_->next_own(bytes));
    return begin_packing({zeros, bytes});
  }
  spec.dtype = bucket_.dtype;
  if (!on_trial_ && comm_.takes_segments(spec)) {
    list_segments();
    start_collective(spec, {.segments = segments_});
    return {};
  }
  FDL_ASSIGN_OR_RETURN(packed_, fusion_.at_least(spec.count * size_of(bucket_.dtype)));
  enter(Stage::pack);
  return {};
}

// Runs the first elements of a single tensor. All ranks cut at the same element, also those without the tensor. If
// input and output differ, the input stays unchanged and needs no copy.
Status BucketRun::begin_allreduce_on_trial() {
  const std::size_t element_bytes = size_of(bucket_.dtype);
  tried_ = std::min(operation_.spec.count, kTrialBytes / element_bytes);
  const std::size_t bytes = tried_ * element_bytes;
  if (entries_.front()) {
    Entry& entry = *entries_.front();
    source_ = static_cast<const std::byte*>(entry.input);
    target_ = static_cast<std::byte*>(entry.handle->output(entry.index).data);
    if (source_ == target_) {
      FDL_ASSIGN_OR_RETURN(kept_, fusion_.at_least(bytes));
      std::memcpy(kept_, source_, bytes);
    }
  } else {
    FDL_ASSIGN_OR_RETURN(target_, fusion_.at_least(bytes));
    std::memset(target_, 0, bytes);
    source_ = target_;
  }
  start_elements(0, tried_);
  return {};
}

// Starts the collective for `count` elements from element `from` on.
void BucketRun::start_elements(std::size_t from, std::size_t count) {
  const std::size_t offset = from * size_of(bucket_.dtype);
  CollectiveSpec spec = operation_.spec;
  spec.count = count;
  start_collective(spec, {source_ + offset, target_ + offset});
}

// Lists the tensors where they lie. Missing tensors contribute zeros and receive no output: their pointers are null.
void BucketRun::list_segments() {
  segments_.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Segment segment{.bytes = static_cast<std::size_t>(bucket_.element_counts[i]) * size_of(bucket_.dtype)};
    if (entries_[i]) {
      segment.input = entries_[i]->input;
      segment.output = entries_[i]->handle->output(entries_[i]->index).data;
    }
    segments_.push_back(segment);
  }
}

// Copies one tensor into the fusion buffer. After the last one starts the collective, in place in that buffer.
void BucketRun::pack_one() {
  if (is_adasum()) return load_one();
  const std::size_t bytes = static_cast<std::size_t>(bucket_.element_counts[segment_]) * size_of(bucket_.dtype);
  if (entries_[segment_]) {
    if (bytes > 0) std::memcpy(packed_ + offset_, entries_[segment_]->input, bytes);
  } else {
    std::memset(packed_ + offset_, 0, bytes);
  }
  offset_ += bytes;
  if (++segment_ < bucket_.names.size()) return;
  segment_ = 0;
  offset_ = 0;
  start_collective(operation_.spec, {packed_, packed_});
}

// Copies one result out of the fusion buffer to its output. After the last one the run is finished.
void BucketRun::unpack_one() {
  if (is_adasum()) return store_one();
  const std::size_t bytes = static_cast<std::size_t>(bucket_.element_counts[segment_]) * size_of(bucket_.dtype);
  if (entries_[segment_] && bytes > 0) {
    std::memcpy(entries_[segment_]->handle->output(entries_[segment_]->index).data, packed_ + offset_, bytes);
  }
  offset_ += bytes;
  if (++segment_ == bucket_.names.size()) finish({});
}

// ---- Adasum ----

// Adasum always works on packed tensors, in the type adasum_works_in(). The buffer has two halves: the values, and the
// scratch space of Adasum behind them.
Status BucketRun::begin_adasum() {
  for (auto& entry : entries_) {
    if (!entry) continue;
    FDL_ASSIGN_OR_RETURN([[maybe_unused]] void* output, make_output(*entry, entry->request.shape));
  }
  const std::size_t count = bucket_.element_count();
  FDL_ASSIGN_OR_RETURN(packed_, fusion_.at_least(2 * count * size_of(adasum_works_in(bucket_.dtype))));
  enter(Stage::pack);
  return {};
}

// Like pack_one(), with conversion and prescale.
void BucketRun::load_one() {
  const auto count = static_cast<std::size_t>(bucket_.element_counts[segment_]);
  const std::size_t bytes = count * size_of(adasum_works_in(bucket_.dtype));
  if (!entries_[segment_]) {
    std::memset(packed_ + offset_, 0, bytes);
  } else if (count > 0) {
    adasum_load(bucket_.dtype, packed_ + offset_, entries_[segment_]->input, count, bucket_.prescale);
  }
  offset_ += bytes;
  if (++segment_ == bucket_.names.size()) start_adasum();
}

// offset_ is now the size of the values, so the scratch space begins there.
void BucketRun::start_adasum() {
  std::vector<std::size_t> ends;
  for (const int64_t count : bucket_.element_counts) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + static_cast<std::size_t>(count));
  }
  adasum_.emplace(comm_, adasum_works_in(bucket_.dtype), std::move(ends), packed_, packed_ + offset_);
  segment_ = 0;
  offset_ = 0;
  enter(Stage::adasum);
}

// Like unpack_one(), with conversion and postscale.
void BucketRun::store_one() {
  const auto count = static_cast<std::size_t>(bucket_.element_counts[segment_]);
  if (entries_[segment_] && count > 0) {
    void* output = entries_[segment_]->handle->output(entries_[segment_]->index).data;
    adasum_store(bucket_.dtype, output, packed_ + offset_, count, bucket_.postscale);
  }
  offset_ += count * size_of(adasum_works_in(bucket_.dtype));
  if (++segment_ == bucket_.names.size()) finish({});
}

// ---- Other collectives ----

// The collective works in place, so the root copies its input to the output first.
Status BucketRun::begin_broadcast() {
  Entry& entry = *entries_.front();
  if (entry.holds) return begin_registration();
  FDL_ASSIGN_OR_RETURN(void* output, make_output(entry, entry.request.shape));
  CollectiveSpec spec{.collective = Collective::broadcast, .count = entry.element_count()};
  if (comm_.rank() == bucket_.root && output != entry.input && entry.byte_count() > 0) {
    FDL_RETURN_IF_ERROR(copy(output, entry.input, entry.byte_count()));
  }
  start_collective(spec, {output, output});
  return {};
}

// The ranks may contribute different numbers of rows, which the plan lists.
Status BucketRun::begin_allgather() {
  Entry& entry = *entries_.front();
  const std::size_t row = product(entry.request.shape, 1);
  std::vector<int64_t> shape = entry.request.shape;
  shape[0] = std::accumulate(bucket_.rows.begin(), bucket_.rows.end(), int64_t{0});
  for (const int64_t rows : bucket_.rows) counts_.push_back(static_cast<std::size_t>(rows) * row);
  FDL_ASSIGN_OR_RETURN(void* output, make_output(entry, std::move(shape)));
  start_collective({.collective = Collective::allgather}, {entry.input, output});
  return {};
}

// bucket_.rows[from * size + to] is the number of rows that rank `from` sends to rank `to`.
Status BucketRun::begin_alltoall() {
  Entry& entry = *entries_.front();
  const auto size = static_cast<std::size_t>(comm_.size());
  const auto me = static_cast<std::size_t>(comm_.rank());
  const std::size_t row = product(entry.request.shape, 1);
  std::vector<int64_t> received(size);
  for (std::size_t peer = 0; peer < size; ++peer) {
    counts_.push_back(static_cast<std::size_t>(bucket_.rows[me * size + peer]) * row);
    received[peer] = bucket_.rows[peer * size + me];
    recv_counts_.push_back(static_cast<std::size_t>(received[peer]) * row);
  }
  std::vector<int64_t> shape = entry.request.shape;
  shape[0] = std::accumulate(received.begin(), received.end(), int64_t{0});
  FDL_ASSIGN_OR_RETURN(void* output, make_output(entry, std::move(shape)));
  entry.handle->output(entry.index).received_splits = std::move(received);
  start_collective({.collective = Collective::alltoall}, {entry.input, output});
  return {};
}

// Rows are the unit of the parts; all ranks derive the same counts from the shape.
Status BucketRun::begin_reduce_scatter() {
  Entry& entry = *entries_.front();
  const auto size = static_cast<int64_t>(comm_.size());
  const std::size_t row = product(entry.request.shape, 1);
  const int64_t rows = entry.request.shape[0];
  // The first (rows % size) ranks receive one more row than the others.
  for (int64_t rank = 0; rank < size; ++rank) {
    counts_.push_back(static_cast<std::size_t>(rows / size + (rank < rows % size ? 1 : 0)) * row);
  }
  std::vector<int64_t> shape = entry.request.shape;
  shape[0] = rows / size + (comm_.rank() < rows % size ? 1 : 0);
  FDL_ASSIGN_OR_RETURN(void* output, make_output(entry, std::move(shape)));
  CollectiveSpec spec{.collective = Collective::reduce_scatter};
  set_reduction(spec);
  start_collective(spec, {entry.input, output});
  return {};
}

// ---- Progress ----

// Packing and unpacking on the CPU proceed by one tensor for each call. The other stages wait for the communicator.
bool BucketRun::progress() {
  switch (stage_) {
    case Stage::symmetric_allocation:
      if (!operation_.completion.done) return false;
      if (const Status taken = take_registration(); !taken.ok()) fail_here(taken);
      return true;
    case Stage::scratch:
      if (!operation_.completion.done) return false;
      take_scratch();
      return true;
    case Stage::pack:
      pack_one();
      return true;
    case Stage::unpack:
      unpack_one();
      return true;
    case Stage::tried:
    case Stage::done:
      return false;
    case Stage::adasum:
      if (!adasum_->done()) return adasum_->progress();
      conclude(adasum_->status());
      return true;
    case Stage::collective:
      break;
  }
  if (!operation_.completion.done) return false;
  conclude(operation_.completion.status);
  return true;
}

// Continues after the collective. Every operation takes this path, so a text is built only for a failure.
void BucketRun::conclude(const Status& status) {
  if (!status.ok()) return finish(status.during(title(), comm_.phase()));
  if (!std::exchange(on_trial_, false)) return end_collective();
  stage_ = Stage::tried;
}

// Continues after the last collective: unpacks the results, if they are packed.
void BucketRun::end_collective() {
  if (device_ != nullptr) return end_on_device();
  if (packed_ == nullptr) return finish({});
  enter(Stage::unpack);
}

// A fused bucket was tried as a whole, because its inputs are copies in the fusion buffer. Of a single tensor, the
// elements behind the tried ones follow.
void BucketRun::go_on() {
  if (source_ == nullptr) return end_collective();
  const auto count = static_cast<std::size_t>(bucket_.element_counts.front());
  if (tried_ == count) return finish({});
  start_elements(tried_, count - tried_);
}

// Nothing was unpacked yet, so the only input that may have changed is a single tensor that is reduced in place.
void BucketRun::withdraw() {
  withdrawn_ = true;
  if (kept_ != nullptr) std::memcpy(target_, kept_, tried_ * size_of(bucket_.dtype));
  finish({});
}

// Changes the stage and records it in the timeline; only for stages that are activities there.
void BucketRun::enter(Stage stage) {
  stage_ = stage;
  if (!trace_) return;
  trace_->activity(stage == Stage::pack     ? Activity::pack
                   : stage == Stage::unpack ? Activity::unpack
                                            : Activity::adasum);
}

void BucketRun::finish(Status status) {
  status_ = std::move(status);
  stage_ = Stage::done;
}

// Ends the communicator with an error of this rank, because the other ranks wait for this rank or soon will.
void BucketRun::fail_here(const Status& why) {
  const Status own = comm_.own(why).during(title());
  comm_.interrupt(own);
  finish(own);
}

}  // namespace fdl
