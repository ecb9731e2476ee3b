// ShmWork: copies in, folds in rank order, copies out.
//
// Every element is folded from the inputs of all ranks in rank order, by whomever and however it is cut, so the bits
// are the same in all ways through this file. What only this rank reads is not copied: its own share of a fold comes
// straight from its input, unless that must be scaled first.
#include "transports/shm/shm_work.h"

#include <array>
#include <cstring>

#include "transports/shm/shm_copy.h"

namespace fdl {
namespace {

// What a fold leaves in the nearest cache for the copy that follows it.
constexpr std::size_t kFoldBlockBytes = 16_KiB;

struct TableNote {
  uint64_t largest_block;  // that goes in steps; 0 where all are in the table's slot
  uint64_t follows;        // 1: the blocks follow the table
};

}  // namespace

void ShmWork::assign(const CollectiveSpec& spec, Buffers buffers, uint64_t operation, uint64_t first_step) {
  spec_ = spec;
  buffers_ = buffers;
  operation_ = operation;
  first_step_ = first_step;
  plan_.assign(spec, rank_, ranks_, layout_.slice_bytes());
}

std::byte* ShmWork::small(int rank) const {
  const std::size_t bytes = plan_.folds() ? plan_.total_bytes() : plan_.small_bytes(rank);
  return bytes <= kInlineBytes ? layout_.line(rank, operation_).payload : layout_.small(rank, operation_);
}

void ShmWork::write_output(std::size_t offset, const void* source, std::size_t bytes) {
  plan_.is_large() ? stream_bytes(output_at(offset), source, bytes) : copy_bytes(output_at(offset), source, bytes);
}

void ShmWork::fold(void* target, std::span<const void* const> sources, std::size_t bytes) const {
  if (bytes == 0) return;
  reduce_many(spec_.dtype, spec_.reduction, target, sources, count_of(bytes));
  if (spec_.postscale != 1) scale(spec_.dtype, target, target, count_of(bytes), spec_.postscale);
}

// ---- small
// -----------------------------------------------------------------------------------------------------------

void ShmWork::publish_small() {
  const std::size_t bytes = plan_.small_bytes(rank_);
  if (!plan_.folds()) return copy_bytes(small(rank_), buffers_.input, bytes);
  const bool scaled = spec_.prescale != 1;
  const std::size_t needed = scaled ? plan_.total_bytes() : bytes;
  if (needed != 0) scale(spec_.dtype, small(rank_), buffers_.input, count_of(needed), spec_.prescale);
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
  for (int r = 0; r < ranks_; ++r) sources[static_cast<std::size_t>(r)] = small(r) + offset;
  if (spec_.prescale == 1) sources[static_cast<std::size_t>(rank_)] = input_at(offset);
  fold(buffers_.output, std::span(sources).first(static_cast<std::size_t>(ranks_)), bytes);
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

// ---- in steps
// --------------------------------------------------------------------------------------------------------

void ShmWork::publish(uint64_t position) {
  const uint64_t step = position - first_step_;
  std::byte* slot = layout_.input(rank_, position);
  if (plan_.collective() == Collective::broadcast || plan_.collective() == Collective::allgather ||
      plan_.collective() == Collective::gather) {
    const ShmPlan::Piece piece = plan_.input_piece(step, rank_);
    return copy_bytes(slot, input_at(piece.offset), piece.bytes);
  }
  const bool scaled = plan_.folds() && spec_.prescale != 1;
  for (int owner = 0; owner < ranks_; ++owner) {
    if (owner == rank_ && !scaled) continue;
    const ShmPlan::Piece piece = plan_.input_piece(step, owner);
    if (piece.bytes == 0) continue;
    if (scaled) {
      scale(spec_.dtype, slot + piece.slot, input_at(piece.offset), count_of(piece.bytes), spec_.prescale);
    } else {
      copy_bytes(slot + piece.slot, input_at(piece.offset), piece.bytes);
    }
  }
}

void ShmWork::take(uint64_t position) { plan_.folds() ? fold_step(position) : move_step(position); }

// Folds this rank's share of a step. For allreduce the result goes where the others collect it and, while it is in the
// nearest cache, to this rank's own output.
void ShmWork::fold_step(uint64_t position) {
  const ShmPlan::Piece piece = plan_.input_piece(position - first_step_, rank_);
  const bool shared = plan_.collective() == Collective::allreduce ||
                      (plan_.collective() == Collective::reduce && rank_ != plan_.root());
  const bool kept = plan_.collective() != Collective::reduce || rank_ == plan_.root();
  const std::size_t kept_at = plan_.collective() == Collective::reduce_scatter
                                  ? plan_.output_piece(position - first_step_, rank_).offset
                                  : piece.offset;
  const std::size_t block = shared && kept ? kFoldBlockBytes : piece.bytes;
  std::array<const void*, kMaxShmRanks> sources;
  for (std::size_t done = 0; done < piece.bytes; done += block) {
    const std::size_t bytes = std::min(block, piece.bytes - done);
    for (int r = 0; r < ranks_; ++r) {
      sources[static_cast<std::size_t>(r)] = layout_.input(r, position) + piece.slot + done;
    }
    if (spec_.prescale == 1) sources[static_cast<std::size_t>(rank_)] = input_at(piece.offset + done);
    void* target = shared ? layout_.result(rank_, position) + done : output_at(kept_at + done);
    fold(target, std::span(sources).first(static_cast<std::size_t>(ranks_)), bytes);
    if (shared && kept) write_output(kept_at + done, target, bytes);
  }
}

void ShmWork::move_step(uint64_t position) {
  const uint64_t step = position - first_step_;
  move_own(step);
  for (const int source : each_of(plan_.take_from())) {
    const ShmPlan::Piece piece = plan_.output_piece(step, source);
    write_output(piece.offset, layout_.input(source, position) + piece.slot, piece.bytes);
  }
}

// What a rank sends itself.
void ShmWork::move_own(uint64_t step) {
  const Collective collective = plan_.collective();
  const bool rooted =
      collective == Collective::broadcast || collective == Collective::scatter || collective == Collective::gather;
  if (rooted && rank_ != plan_.root()) return;
  const ShmPlan::Piece from = plan_.input_piece(step, rank_);
  const ShmPlan::Piece to = plan_.output_piece(step, rank_);
  copy_bytes(output_at(to.offset), input_at(from.offset), to.bytes);
}

void ShmWork::collect(uint64_t position) {
  for (const int owner : each_of(plan_.collect_from())) {
    const ShmPlan::Piece piece = plan_.output_piece(position - first_step_, owner);
    write_output(piece.offset, layout_.result(owner, position), piece.bytes);
  }
}

// ---- alltoall
// --------------------------------------------------------------------------------------------------------

void ShmWork::publish_table() {
  std::byte* slot = layout_.small(rank_, operation_);
  const std::size_t table_bytes = static_cast<std::size_t>(ranks_) * sizeof(uint64_t);
  TableNote note{0, 0};
  for (int r = 0; r < ranks_; ++r) {
    const uint64_t bytes = plan_.block_bytes(r);
    std::memcpy(slot + static_cast<std::size_t>(r) * sizeof bytes, &bytes, sizeof bytes);
    note.largest_block = std::max(note.largest_block, bytes);
  }
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
