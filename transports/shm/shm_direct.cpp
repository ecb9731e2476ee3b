// ShmDirect decides which buffers must be shared, plans each rank's share of the work, and folds or moves the bytes.
#include "transports/shm/shm_direct.h"

#include <cstring>
#include <optional>

#include "transports/shm/shm_copy.h"

namespace fdl {
namespace {

constexpr uint64_t kNotShared = ~uint64_t{0};
constexpr std::size_t kPlacesOffset = 16;  // in a line's payload
constexpr std::size_t kShareGrain = 64;    // shares begin on cache lines of the vector

// Bytes of one work() call. Between two calls the rank makes progress elsewhere and detects failures of others.
constexpr std::size_t kSegmentBytes = 256_KiB;
// Bytes folded at a time: the result stays in the first-level cache until it is written to all outputs.
constexpr std::size_t kBlockBytes = 8_KiB;
constexpr std::size_t kScaledBlockBytes = 2_KiB;
// From these sizes on results are written past the caches, unless they overwrite an input that was just read.
constexpr std::size_t kStreamedFoldBytes = 64_KiB;
constexpr std::size_t kStreamedMoveBytes = 256_KiB;

const std::byte* bytes_at(const void* memory) { return static_cast<const std::byte*>(memory); }

// True if input and output do not overlap, or the output begins exactly `distance` bytes behind the start of the input.
bool is_clean_overlap(const void* input, std::size_t input_bytes, const void* output, std::size_t output_bytes,
                      std::optional<std::ptrdiff_t> distance) {
  const auto in = reinterpret_cast<uintptr_t>(input);
  const auto out = reinterpret_cast<uintptr_t>(output);
  const bool apart = in + input_bytes <= out || out + output_bytes <= in;
  return apart || (distance && out == in + static_cast<uintptr_t>(*distance));
}

}  // namespace

ShmDirect::ShmDirect(const ShmLayout& layout, std::shared_ptr<HostMemory> memory, int rank, int ranks)
    : layout_(layout), memory_(std::move(memory)), rank_(rank), ranks_(ranks) {
  if (memory_) scratch_.resize(kBlockBytes + static_cast<std::size_t>(ranks) * kScaledBlockBytes + kShareGrain);
}

// ---- Agreement ----

// The place of a buffer: 0 if no other rank needs it, kNotShared if it is not in the shared memory.
uint64_t ShmDirect::place_if(bool needed, const void* memory, std::size_t bytes) const {
  if (!needed || bytes == 0) return 0;
  return memory_->place_of(memory, bytes).value_or(kNotShared);
}

bool ShmDirect::announce(const CollectiveSpec& spec, Buffers buffers, const ShmPlan& plan, uint64_t operation) {
  if (!memory_) return false;
  spec_ = spec;
  buffers_ = buffers;
  plan_ = &plan;
  operation_ = operation;
  const bool root = rank_ == plan.root();
  const auto own = static_cast<std::ptrdiff_t>(plan.block_offset(rank_));
  // Which of this rank's buffers other ranks use, and how input and output may overlap.
  bool input_is_read = true;
  std::size_t written_by_others = 0;
  std::size_t output_bytes = plan.total_bytes();
  bool goes_at_once = false;
  std::optional<std::ptrdiff_t> distance = 0;
  voters_ = all_ranks(ranks_);
  switch (plan.collective()) {
    case Collective::allreduce:
      written_by_others = plan.total_bytes();
      break;
    case Collective::reduce:
      output_bytes = written_by_others = root ? plan.total_bytes() : 0;
      break;
    case Collective::broadcast:
      input_is_read = root;
      voters_ = bit_of(plan.root());
      break;
    case Collective::scatter:
      input_is_read = root;
      voters_ = bit_of(plan.root());
      [[fallthrough]];
    case Collective::reduce_scatter:
      output_bytes = plan.block_bytes(rank_);
      distance = own;
      break;
    case Collective::gather:
      input_is_read = !root;
      if (!root) output_bytes = 0;
      [[fallthrough]];
    case Collective::allgather:
      if (output_bytes != 0 && buffers_.input == buffers_.output) buffers_.input = bytes_at(buffers_.output) + own;
      distance = -own;
      break;
    case Collective::alltoall:
      // Blocks that fit behind their table in the small slot are sent with it.
      if (plan.total_bytes() + static_cast<std::size_t>(ranks_) * sizeof(uint64_t) <= kSmallBytes) goes_at_once = true;
      output_bytes = plan.arriving_offset(ranks_ - 1) + plan.arriving_bytes(ranks_ - 1);
      distance.reset();  // in place, blocks would be overwritten before they are read
      break;
    case Collective::barrier:
      return false;
  }
  const std::size_t input_bytes = plan.input_bytes();
  const bool clean = buffers_.segments.empty() &&
                     is_clean_overlap(buffers_.input, input_bytes, buffers_.output, output_bytes, distance);
  // kNotShared for either buffer is a refusal.
  Places places{kNotShared, kNotShared};
  if (clean && !goes_at_once) {
    places.input = place_if(input_is_read, buffers_.input, input_bytes);
    places.output = place_if(written_by_others != 0, buffers_.output, written_by_others);
  }
  std::memcpy(layout_.line(rank_, operation).payload + kPlacesOffset, &places, sizeof places);
  return !refused_by(voters_ & bit_of(rank_));
}

ShmDirect::Places ShmDirect::places_of(int rank) const {
  Places places;
  std::memcpy(&places, layout_.line(rank, operation_).payload + kPlacesOffset, sizeof places);
  return places;
}

bool ShmDirect::refused_by(RankMask announced) const {
  for (const int voter : each_of(announced & voters_)) {
    const Places places = places_of(voter);
    if (places.input == kNotShared || places.output == kNotShared) return true;
  }
  return false;
}

// ---- Planning this rank's share ----

void ShmDirect::begin() {
  job_count_ = job_ = done_ = 0;
  for (const int r : each_of(voters_)) {
    inputs_[static_cast<std::size_t>(r)] = r == rank_ ? bytes_at(buffers_.input) : memory_->at(places_of(r).input);
  }
  plan_->folds() ? lay_out_fold() : lay_out_moves();
  // One kernel writes all outputs if nothing must be scaled first and every streamed output is aligned to cache lines.
  one_pass_ = plan_->folds() && spec_.prescale == 1 &&
              can_reduce_to_many(spec_.dtype, spec_.reduction, static_cast<std::size_t>(ranks_));
  for (std::size_t i = first_streamed_; one_pass_ && i < output_count_; ++i) {
    if (reinterpret_cast<uintptr_t>(outputs_[i]) % kShareGrain != 0) one_pass_ = false;
  }
}

void ShmDirect::add_job(const std::byte* source, std::size_t offset, std::size_t bytes) {
  if (bytes != 0) jobs_[job_count_++] = {source, offset, bytes};
}

void ShmDirect::lay_out_fold() {
  output_count_ = 0;
  first_streamed_ = 0;
  shift_ = 0;
  const std::size_t total = plan_->total_bytes();
  if (plan_->collective() == Collective::reduce_scatter) {
    shift_ = plan_->block_offset(rank_);
    outputs_[output_count_++] = static_cast<std::byte*>(buffers_.output);
    // In place: the output is in the cache.
    if (buffers_.output == input_of(rank_) + shift_) first_streamed_ = 1;
    add_job(nullptr, 0, plan_->block_bytes(rank_));
  } else {
    // Outputs that are also inputs come first: their lines are in the cache when they are written.
    for (const bool in_place : {true, false}) {
      for (int r = 0; r < ranks_; ++r) {
        if (plan_->collective() == Collective::reduce && r != plan_->root()) continue;
        std::byte* output = r == rank_ ? static_cast<std::byte*>(buffers_.output) : memory_->at(places_of(r).output);
        if ((output == input_of(r)) == in_place) outputs_[output_count_++] = output;
      }
      if (in_place) first_streamed_ = output_count_;
    }
    // Shares begin on cache lines of the vector, so that no two ranks write the same line.
    const std::size_t share = round_up(parts_of(total, static_cast<std::size_t>(ranks_)), kShareGrain);
    const std::size_t first = std::min(static_cast<std::size_t>(rank_) * share, total);
    add_job(nullptr, first, std::min(share, total - first));
  }
  // Small results stay in the caches.
  if (total < kStreamedFoldBytes) first_streamed_ = output_count_;
}

// Each rank begins with the next rank, so that not all of them read from one rank at once.
void ShmDirect::lay_out_moves() {
  outputs_[0] = static_cast<std::byte*>(buffers_.output);
  for (int i = 1; i <= ranks_; ++i) {
    const int r = (rank_ + i) % ranks_;
    switch (plan_->collective()) {
      case Collective::broadcast:
        if (r == plan_->root()) add_job(input_of(r), 0, plan_->total_bytes());
        break;
      case Collective::scatter:
        if (r == plan_->root()) add_job(input_of(r) + plan_->block_offset(rank_), 0, plan_->block_bytes(rank_));
        break;
      case Collective::gather:
        if (rank_ != plan_->root()) break;
        [[fallthrough]];
      case Collective::allgather:
        add_job(input_of(r), plan_->block_offset(r), plan_->block_bytes(r));
        break;
      case Collective::alltoall:
        add_job(block_for_me(r), plan_->arriving_offset(r), plan_->arriving_bytes(r));
        break;
      default:
        break;
    }
  }
}

// The block for this rank in the input of `source`: behind the blocks for lower ranks, whose sizes are in the table of
// `source`.
const std::byte* ShmDirect::block_for_me(int source) const {
  const std::byte* block = input_of(source);
  const std::byte* table = layout_.small(source, operation_);
  for (int before = 0; before < rank_; ++before) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, table + static_cast<std::size_t>(before) * sizeof bytes, sizeof bytes);
    block += bytes;
  }
  return block;
}

// ---- Doing the work ----

void ShmDirect::work() {
  const Job& job = jobs_[job_];
  const std::size_t bytes = std::min(kSegmentBytes, job.bytes - done_);
  if (job.source == nullptr) {
    fold(job.offset + done_, bytes);
  } else {
    std::byte* target = outputs_[0] + job.offset + done_;
    plan_->total_bytes() >= kStreamedMoveBytes ? stream_bytes(target, job.source + done_, bytes)
                                               : copy_bytes(target, job.source + done_, bytes);
  }
  done_ += bytes;
  if (done_ < job.bytes) return;
  done_ = 0;
  ++job_;
}

void ShmDirect::fold(std::size_t offset, std::size_t bytes) {
  if (one_pass_) return fold_in_one_pass(offset, bytes);
  const std::size_t block = spec_.prescale == 1 ? kBlockBytes : kScaledBlockBytes;
  for (std::size_t done = 0; done < bytes; done += block) fold_block(offset + done, std::min(block, bytes - done));
}

void ShmDirect::fold_block(std::size_t offset, std::size_t bytes) {
  const std::size_t count = bytes / plan_->element();
  // The result block begins on a cache line.
  void* aligned = scratch_.data();
  std::size_t space = scratch_.size();
  auto* result = static_cast<std::byte*>(std::align(kShareGrain, kBlockBytes, aligned, space));
  reduce_many(spec_.dtype, spec_.reduction, result, sources_at(offset + shift_, bytes), count);
  if (spec_.postscale != 1) scale(spec_.dtype, result, result, count, spec_.postscale);
  for (std::size_t i = 0; i < output_count_; ++i) {
    i < first_streamed_ ? copy_bytes(outputs_[i] + offset, result, bytes)
                        : stream_bytes(outputs_[i] + offset, result, bytes);
  }
}

// Folds, scales and writes to all outputs in one kernel, without a block in between.
void ShmDirect::fold_in_one_pass(std::size_t offset, std::size_t bytes) {
  std::array<std::byte*, kMaxShmRanks> targets;
  for (std::size_t i = 0; i < output_count_; ++i) targets[i] = outputs_[i] + offset;
  reduce_to_many(spec_.dtype, spec_.reduction, std::span(targets).first(output_count_),
                 sources_at(offset + shift_, bytes), bytes / plan_->element(), spec_.postscale, first_streamed_);
}

// The inputs of all ranks, or, with a prescale, scaled copies of them in scratch_.
std::span<const void* const> ShmDirect::sources_at(std::size_t offset, std::size_t bytes) {
  std::byte* scaled = scratch_.data() + kShareGrain + kBlockBytes;
  for (int r = 0; r < ranks_; ++r) {
    const std::byte* input = input_of(r) + offset;
    sources_[static_cast<std::size_t>(r)] = input;
    if (spec_.prescale == 1) continue;
    scale(spec_.dtype, scaled, input, bytes / plan_->element(), spec_.prescale);
    sources_[static_cast<std::size_t>(r)] = scaled;
    scaled += kScaledBlockBytes;
  }
  return std::span(sources_).first(static_cast<std::size_t>(ranks_));
}

void ShmDirect::withdraw() {
  // Others write only into outputs of allreduce, and of the root of reduce.
  const bool root_only = plan_->collective() == Collective::reduce && rank_ != plan_->root();
  if (plan_->folds() && plan_->collective() != Collective::reduce_scatter && !root_only) {
    memory_->withdraw(buffers_.output, plan_->total_bytes());
  }
}

}  // namespace fdl
