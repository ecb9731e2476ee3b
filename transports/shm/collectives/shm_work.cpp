// ShmWork copies inputs into slots, folds slots in rank order, and copies results out.
//
// Every element is folded from the inputs of all ranks in rank order, whichever rank folds it and however the vector is
// cut, so all paths in this file give the same bits. A rank's own share of a fold is read from its input directly,
// without a copy, unless it must be scaled first.
#include "transports/shm/collectives/shm_work.h"

#include <array>
#include <cstring>

#include "transports/shm/shm_copy.h"

namespace fdl {
namespace {

// Bytes folded at a time. The result stays in the first-level cache for the copy that follows. For memory that is in no
// cache the blocks are small, so that prefetching, folding and streaming overlap. A user's function gets larger blocks,
// so that it is called less often.
constexpr std::size_t kFoldBlockBytes = 4_KiB;
constexpr std::size_t kColdBlockBytes = 512;
constexpr std::size_t kUserBlockBytes = 16_KiB;
constexpr std::size_t kFetchAheadBytes = 4_KiB;
// Source for a null input, one block at a time.
alignas(64) constexpr std::byte kZeros[kFoldBlockBytes] = {};

std::size_t block_bytes(const CollectiveSpec& spec, bool cold, bool has_input) {
  if (spec.reduction.op == Op::user && has_input) return kUserBlockBytes;
  return cold ? kColdBlockBytes : kFoldBlockBytes;
}

// The size of a first block that ends at a cache line of the output, so that all later blocks are streamed in whole
// lines.
std::size_t first_block_bytes(std::size_t block, const std::byte* output, std::size_t element) {
  const std::size_t beyond_line = reinterpret_cast<uintptr_t>(output) % 64;
  return beyond_line % element == 0 ? block - beyond_line : block;
}

// The payload of an alltoall's line.
struct TableNote {
  uint64_t largest_block;  // of this rank's blocks that go in steps; 0 if all follow the table
  uint64_t follows;        // 1: the blocks follow the table
};

}  // namespace

void ShmWork::assign(const CollectiveSpec& spec, Buffers buffers, uint64_t operation, uint64_t first_step) {
  spec_ = spec;
  buffers_ = buffers;
  operation_ = operation;
  first_step_ = first_step;
  plan_.assign(spec, rank_, ranks_, std::min(layout_.slice_bytes(), kMostSliceBytes));
  runs_.assign(buffers, plan_.input_bytes());
  published_ = taken_ = collected_ = {};
  const std::size_t most = plan_.total_bytes();
  fills_line_ = plan_.small() && plan_.folds() && most > kBesideNumber && most <= kInlineBytes;
}

// The small payload of a rank: in its line if it fits, else in its small slot.
std::byte* ShmWork::small(int rank) const {
  const std::size_t bytes = plan_.folds() ? plan_.total_bytes() : plan_.small_bytes(rank);
  return bytes <= kInlineBytes ? layout_.line(rank, operation_).payload : layout_.small(rank, operation_);
}

std::byte* ShmWork::result(int owner, uint64_t position, const ShmPlan::Segment& share) const {
  return plan_.swaps() ? layout_.input(1 - owner, position) + share.slot : layout_.result(owner, position);
}

void ShmWork::put_input(std::byte* slot, const std::byte* input, std::size_t bytes) const {
  const bool scaled = plan_.folds() && spec_.prescale != 1;
  if (input == nullptr) {
    std::memset(slot, 0, bytes);
  } else if (scaled) {
    scale(spec_.dtype, slot, input, count_of(bytes), spec_.prescale);
  } else {
    plan_.is_large() ? copy_cold(slot, input, bytes) : copy_bytes(slot, input, bytes);
  }
}

void ShmWork::write_output(void* output, const void* source, std::size_t bytes) const {
  plan_.is_large() ? stream_unordered(output, source, bytes) : copy_bytes(output, source, bytes);
}

// In place, this rank has just read the output's lines: they are in its cache, and streaming past them costs more than
// plain stores.
bool ShmWork::streams_to(const ShmRuns::Run& run) const { return plan_.is_large() && run.output != run.input; }

void ShmWork::write_result(const ShmRuns::Run& run, std::size_t at, const std::byte* result, std::size_t bytes) const {
  streams_to(run) ? stream_unordered(run.output + at, result, bytes) : copy_bytes(run.output + at, result, bytes);
}

void ShmWork::finish() const {
  if (plan_.is_large()) order_streams();
}

// Folds one block of all sources and scales it.
void ShmWork::fold(void* target, std::span<const void* const> sources, std::size_t bytes) const {
  if (bytes == 0) return;
  reduce_many(spec_.dtype, spec_.reduction, target, sources, count_of(bytes));
  if (spec_.postscale != 1) scale(spec_.dtype, target, target, count_of(bytes), spec_.postscale);
}

// ---- Small operations ----

bool ShmWork::writes_small_slot() const {
  if (plan_.collective() == Collective::alltoall) return true;
  return plan_.small() && std::max(plan_.small_bytes(rank_), plan_.folds() ? plan_.total_bytes() : 0) > kInlineBytes;
}

void ShmWork::publish_small() {
  const std::size_t bytes = plan_.small_bytes(rank_);
  if (!plan_.folds()) return copy_bytes(small(rank_), buffers_.input, bytes);
  const bool scaled = spec_.prescale != 1;
  const std::size_t needed = scaled ? plan_.total_bytes() : bytes;
  runs_.walk(published_, 0, needed,
             [&](const ShmRuns::Run& run, std::size_t at) { put_input(small(rank_) + at, run.input, run.bytes); });
}

void ShmWork::fetch_next_slot() const {
  const std::size_t bytes = plan_.small_bytes(rank_);
  if (bytes > kInlineBytes) fetch_to_write(layout_.small(rank_, operation_ + 1), bytes);
}

void ShmWork::take_small() { plan_.folds() ? fold_small() : move_small(); }

void ShmWork::fold_small() {
  if (plan_.collective() == Collective::reduce && rank_ != plan_.root()) return;
  const bool mine_only = plan_.collective() == Collective::reduce_scatter;
  const std::size_t offset = mine_only ? plan_.block_offset(rank_) : 0;
  const std::size_t bytes = mine_only ? plan_.block_bytes(rank_) : plan_.total_bytes();
  std::array<const void*, kMaxShmRanks> sources;
  if (runs_.in_segments()) return fold_small_runs();
  for (int r = 0; r < ranks_; ++r) sources[static_cast<std::size_t>(r)] = small(r) + offset;
  if (spec_.prescale == 1) sources[static_cast<std::size_t>(rank_)] = input_at(offset);
  fold(buffers_.output, std::span(sources).first(static_cast<std::size_t>(ranks_)), bytes);
}

// Folds a small vector in segments, run by run.
void ShmWork::fold_small_runs() {
  runs_.walk(taken_, 0, plan_.total_bytes(), [&](const ShmRuns::Run& run, std::size_t at) {
    std::array<const void*, kMaxShmRanks> sources;
    for (int r = 0; r < ranks_; ++r) sources[static_cast<std::size_t>(r)] = small(r) + at;
    if (run.output != nullptr) fold(run.output, std::span(sources).first(static_cast<std::size_t>(ranks_)), run.bytes);
  });
}

// Folds over this rank's own input in its slot: no other rank reads that range before the share is done.
void ShmWork::fold_share() {
  const ShmPlan::Segment share = plan_.folded_segment(rank_);
  std::array<const void*, kMaxShmRanks> sources;
  for (int r = 0; r < ranks_; ++r) sources[static_cast<std::size_t>(r)] = small(r) + share.slot;
  fold(small(rank_) + share.slot, std::span(sources).first(static_cast<std::size_t>(ranks_)), share.bytes);
}

void ShmWork::take_shares() {
  for (const int folder : each_of(plan_.folders())) {
    const ShmPlan::Segment share = plan_.folded_segment(folder);
    runs_.walk(taken_, share.offset, share.bytes, [&](const ShmRuns::Run& run, std::size_t at) {
      if (run.output != nullptr) copy_bytes(run.output, small(folder) + share.slot + at, run.bytes);
    });
  }
}

void ShmWork::move_small() {
  switch (plan_.collective()) {
    case Collective::broadcast:
      if (rank_ == plan_.root()) return copy_bytes(buffers_.output, buffers_.input, plan_.total_bytes());
      return copy_bytes(buffers_.output, small(plan_.root()), plan_.total_bytes());
    case Collective::scatter: {
      const std::size_t offset = plan_.block_offset(rank_);
      const void* source = rank_ == plan_.root() ? input_at(offset) : small(plan_.root()) + offset;
      return copy_bytes(buffers_.output, source, plan_.block_bytes(rank_));
    }
    case Collective::gather:
      if (rank_ != plan_.root()) return;
      [[fallthrough]];
    case Collective::allgather:
      for (int r = 0; r < ranks_; ++r) {
        copy_bytes(output_at(plan_.block_offset(r)), r == rank_ ? buffers_.input : small(r), plan_.block_bytes(r));
      }
      return;
    default:
      return;
  }
}

// ---- In steps ----

void ShmWork::publish(uint64_t position) {
  const uint64_t step = position - first_step_;
  std::byte* slot = layout_.input(rank_, position);
  if (plan_.collective() == Collective::broadcast || plan_.collective() == Collective::allgather ||
      plan_.collective() == Collective::gather) {
    const ShmPlan::Segment segment = plan_.input_segment(step, rank_);
    return put_input(slot, input_at(segment.offset), segment.bytes);
  }
  const bool scaled = plan_.folds() && spec_.prescale != 1;
  for (int owner = 0; owner < ranks_; ++owner) {
    if (owner == rank_ && !scaled) continue;
    const ShmPlan::Segment segment = plan_.input_segment(step, owner);
    runs_.walk(published_, segment.offset, segment.bytes, [&](const ShmRuns::Run& run, std::size_t at) {
      put_input(slot + segment.slot + at, run.input, run.bytes);
    });
  }
}

void ShmWork::take(uint64_t position) { plan_.folds() ? fold_step(position) : move_step(position); }

void ShmWork::fold_step(uint64_t position) {
  const uint64_t step = position - first_step_;
  const ShmPlan::Segment share = plan_.input_segment(step, rank_);
  runs_.walk(taken_, share.offset, share.bytes, [&](ShmRuns::Run run, std::size_t at) {
    if (plan_.collective() == Collective::reduce_scatter)
      run.output = output_at(plan_.output_segment(step, rank_).offset + at);
    if (plan_.collective() == Collective::reduce && rank_ != plan_.root()) run.output = nullptr;
    fold_run(run, share, at, position);
  });
}

// Folds a run of this rank's share of a step. The result is written where the others collect it and, while it is in the
// first-level cache, to this rank's own output. If no rank collects it, it may pass through the range of the slot for
// this rank's own input, which no other rank reads.
void ShmWork::fold_run(ShmRuns::Run run, const ShmPlan::Segment& share, std::size_t at, uint64_t position) {
  const bool shared = plan_.collective() == Collective::allreduce ||
                      (plan_.collective() == Collective::reduce && rank_ != plan_.root());
  const bool ahead = plan_.is_large() && run.input != nullptr;
  const bool own = spec_.prescale == 1;  // else the scaled input is in the slot
  // Where the folded block is written first.
  std::byte* results = shared            ? result(rank_, position, share) + at
                       : streams_to(run) ? layout_.input(rank_, position) + share.slot + at
                                         : run.output;
  std::array<const void*, kMaxShmRanks> sources;
  const std::size_t block = block_bytes(spec_, plan_.is_large(), run.input != nullptr);
  std::size_t bytes = first_block_bytes(block, run.output, plan_.element());
  for (std::size_t done = 0; done < run.bytes; done += bytes, bytes = block) {
    bytes = std::min(bytes, run.bytes - done);
    if (ahead) fetch_to_read(run.input + done + kFetchAheadBytes, bytes);
    for (int r = 0; r < ranks_; ++r) {
      sources[static_cast<std::size_t>(r)] = layout_.input(r, position) + share.slot + at + done;
    }
    if (own) sources[static_cast<std::size_t>(rank_)] = run.input == nullptr ? kZeros : run.input + done;
    fold(results + done, std::span(sources).first(static_cast<std::size_t>(ranks_)), bytes);
    if (results != run.output && run.output != nullptr) write_result(run, done, results + done, bytes);
  }
}

void ShmWork::move_step(uint64_t position) {
  const uint64_t step = position - first_step_;
  move_own(step);
  for (const int source : each_of(plan_.take_from())) {
    const ShmPlan::Segment segment = plan_.output_segment(step, source);
    write_output(output_at(segment.offset), layout_.input(source, position) + segment.slot, segment.bytes);
  }
}

// Copies the part that a rank sends to itself.
void ShmWork::move_own(uint64_t step) {
  const Collective collective = plan_.collective();
  const bool rooted =
      collective == Collective::broadcast || collective == Collective::scatter || collective == Collective::gather;
  if (rooted && rank_ != plan_.root()) return;
  const ShmPlan::Segment from = plan_.input_segment(step, rank_);
  const ShmPlan::Segment to = plan_.output_segment(step, rank_);
  copy_bytes(output_at(to.offset), input_at(from.offset), to.bytes);
}

void ShmWork::collect(uint64_t position) {
  for (const int owner : each_of(plan_.collect_from())) {
    const ShmPlan::Segment segment = plan_.output_segment(position - first_step_, owner);
    const std::byte* results = result(owner, position, segment);
    runs_.walk(collected_, segment.offset, segment.bytes, [&](const ShmRuns::Run& run, std::size_t at) {
      if (run.output != nullptr) write_result(run, 0, results + at, run.bytes);
    });
  }
}

// ---- Alltoall ----

void ShmWork::publish_table() {
  std::byte* slot = layout_.small(rank_, operation_);
  const std::size_t table_bytes = static_cast<std::size_t>(ranks_) * sizeof(uint64_t);
  TableNote note{0, 0};
  for (int r = 0; r < ranks_; ++r) {
    const uint64_t bytes = plan_.block_bytes(r);
    std::memcpy(slot + static_cast<std::size_t>(r) * sizeof bytes, &bytes, sizeof bytes);
    note.largest_block = std::max(note.largest_block, bytes);
  }
  // Blocks that fit behind the table in the small slot are published with it.
  note.follows = table_bytes + plan_.total_bytes() <= kSmallBytes ? 1 : 0;
  if (note.follows == 1) {
    copy_bytes(slot + table_bytes, buffers_.input, plan_.total_bytes());
    note.largest_block = 0;
  }
  std::memcpy(layout_.line(rank_, operation_).payload, &note, sizeof note);
}

std::size_t ShmWork::announced_bytes(int source) const {
  uint64_t bytes = 0;
  std::memcpy(&bytes, layout_.small(source, operation_) + static_cast<std::size_t>(rank_) * sizeof bytes, sizeof bytes);
  return bytes;
}

std::optional<int> ShmWork::wrong_table() const {
  for (int r = 0; r < ranks_; ++r) {
    if (announced_bytes(r) != plan_.arriving_bytes(r)) return r;
  }
  return std::nullopt;
}

void ShmWork::read_tables() {
  uint64_t largest = 0;
  following_ = 0;
  for (int r = 0; r < ranks_; ++r) {
    TableNote note;
    std::memcpy(&note, layout_.line(r, operation_).payload, sizeof note);
    largest = std::max(largest, note.largest_block);
    if (note.follows == 1) following_ |= bit_of(r);
  }
  plan_.steps_for_largest_block(largest, following_, (following_ & bit_of(rank_)) == 0);
}

void ShmWork::take_following() {
  for (const int source : each_of(following_)) {
    const std::byte* table = layout_.small(source, operation_);
    std::size_t offset = static_cast<std::size_t>(ranks_) * sizeof(uint64_t);
    for (int before = 0; before < rank_; ++before) {
      uint64_t bytes = 0;
      std::memcpy(&bytes, table + static_cast<std::size_t>(before) * sizeof bytes, sizeof bytes);
      offset += bytes;
    }
    copy_bytes(output_at(plan_.arriving_offset(source)), table + offset, plan_.arriving_bytes(source));
  }
}

}  // namespace fdl
