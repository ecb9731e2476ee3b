// ShmPlan computes the sizes, masks, steps and segments of one collective.
#include "transports/shm/collectives/shm_plan.h"

#include <algorithm>

#include "transports/shm/shm_layout.h"

namespace fdl {
namespace {

constexpr std::size_t kSliceGrain = 64;  // slices begin on cache lines

// Largest vector that every rank folds whole. The work grows with the number of ranks; above this size owners share it.
std::size_t one_shot_bytes(int ranks) {
  return std::clamp<std::size_t>(64_KiB / static_cast<std::size_t>(ranks), 512, kSmallBytes);
}

// With more ranks than this, a few of them fold a small vector for all: reading their result takes less time than
// reading every rank's slot, and two stages take less time than three. 32 ranks on 2 cores, 4 KiB: 490 us in steps, 200
// to 360 with one folder. Up to 512 bytes, and with 8 ranks, it saves nothing.
constexpr int kFewRanks = 8;
constexpr std::size_t kLeastFoldedBytes = 1_KiB;
constexpr std::size_t kLeastShareBytes = 4_KiB;

// A vector that fits into one step is still cut, so that the copies of one rank overlap with the folds of another.
constexpr std::size_t kStepsWanted = 8;
constexpr std::size_t kLeastSliceBytes = 32_KiB;

}  // namespace

// Places blocks one behind the other and returns their total size.
std::size_t ShmPlan::lay_out(Blocks& blocks, std::span<const std::size_t> counts, std::size_t element) {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    blocks[i] = {offset, counts[i] * element};
    offset += blocks[i].bytes;
  }
  return offset;
}

void ShmPlan::assign(const CollectiveSpec& spec, int rank, int ranks, std::size_t slice_bytes) {
  collective_ = spec.collective;
  rank_ = rank;
  ranks_ = ranks;
  root_ = spec.root;
  element_ = size_of(spec.dtype);
  slice_ = slice_bytes;
  assign_blocks(spec);
  assign_masks();
  assign_steps();
}

bool ShmPlan::folds() const {
  return collective_ == Collective::allreduce || collective_ == Collective::reduce ||
         collective_ == Collective::reduce_scatter;
}

// Sets the sizes and offsets of the vector or the blocks.
void ShmPlan::assign_blocks(const CollectiveSpec& spec) {
  switch (collective_) {
    case Collective::allreduce:
    case Collective::reduce:
    case Collective::broadcast:
      total_ = spec.count * element_;
      break;
    case Collective::alltoall:
      total_ = lay_out(blocks_, spec.counts, element_);
      lay_out(arriving_, spec.recv_counts, element_);
      break;
    case Collective::barrier:
      total_ = 0;
      break;
    default:
      total_ = lay_out(blocks_, spec.counts, element_);
  }
}

// Sets whether this rank publishes, and which ranks it reads from in each stage.
void ShmPlan::assign_masks() {
  const RankMask others = all_ranks(ranks_) & ~bit_of(rank_);
  const bool at_root = rank_ == root_;
  publishes_ = true;
  take_from_ = others;
  collect_from_ = 0;
  switch (collective_) {
    case Collective::allreduce:
      collect_from_ = others;
      break;
    case Collective::reduce:
      collect_from_ = at_root ? others : 0;
      break;
    case Collective::broadcast:
    case Collective::scatter:
      publishes_ = at_root;
      take_from_ = at_root ? 0 : bit_of(root_);
      break;
    case Collective::gather:
      publishes_ = !at_root || ranks_ == 1;
      take_from_ = at_root ? others : 0;
      break;
    default:
      break;
  }
}

// Decides whether the operation is small, else how many steps it has.
void ShmPlan::assign_steps() {
  std::size_t largest = 0;  // small slot of any rank
  std::size_t largest_block = 0;
  const std::size_t capacity = slice_ * static_cast<std::size_t>(ranks_);
  for (int r = 0; r < ranks_; ++r) largest = std::max(largest, small_bytes(r));
  for (int r = 0; r < ranks_; ++r) largest_block = std::max(largest_block, block_bytes(r));
  small_ = largest <= (folds() ? one_shot_bytes(ranks_) : kSmallBytes);
  steps_ = 0;
  assign_folders();
  if (small_ || collective_ == Collective::alltoall) return;
  switch (collective_) {
    case Collective::allreduce:
    case Collective::reduce:
    case Collective::broadcast: {
      // Steps are at least this large, so that their overhead stays small.
      const std::size_t least = std::min(kLeastSliceBytes, slice_) * static_cast<std::size_t>(ranks_);
      const std::size_t step = std::clamp(total_ / kStepsWanted, least, capacity);
      slice_ = std::min(slice_, round_up(parts_of(step, static_cast<std::size_t>(ranks_)), kSliceGrain));
      steps_ = parts_of(total_, slice_ * static_cast<std::size_t>(ranks_));
      break;
    }
    case Collective::allgather:
    case Collective::gather:
      steps_ = parts_of(largest_block, capacity);  // the root's own block is cut into the same steps
      break;
    default:
      steps_ = parts_of(largest_block, slice_);
  }
}

// Folders are spread evenly, because neighbouring ranks may share caches or a memory channel.
void ShmPlan::assign_folders() {
  folders_ = 0;
  if (collective_ != Collective::allreduce || ranks_ <= kFewRanks) return;
  if (total_ < kLeastFoldedBytes || total_ > kSmallBytes) return;
  small_ = true;
  const int count = static_cast<int>(std::max<std::size_t>(total_ / kLeastShareBytes, 1));
  folded_ = round_up(parts_of(total_, static_cast<std::size_t>(count)), kSliceGrain);
  for (int k = 0; k < count; ++k) folders_ |= bit_of(k * ranks_ / count);
}

ShmPlan::Segment ShmPlan::folded_segment(int folder) const {
  const auto before = static_cast<std::size_t>(__builtin_popcountll(folders_ & (bit_of(folder) - 1)));
  const std::size_t first = std::min(before * folded_, total_);
  return {first, std::min(folded_, total_ - first), first};
}

void ShmPlan::steps_for_largest_block(std::size_t bytes, RankMask already_taken, bool publishes) {
  steps_ = parts_of(bytes, slice_);
  take_from_ &= ~already_taken;
  publishes_ = publishes;
}

std::size_t ShmPlan::small_bytes(int rank) const {
  switch (collective_) {
    case Collective::allreduce:
      return total_;
    case Collective::reduce:
      return rank == root_ ? 0 : total_;
    case Collective::broadcast:
    case Collective::scatter:
      return rank == root_ ? total_ : 0;
    case Collective::allgather:
      return block_bytes(rank);
    case Collective::gather:
      return rank == root_ ? 0 : block_bytes(rank);
    case Collective::reduce_scatter:
      return total_;
    default:
      return 0;
  }
}

std::size_t ShmPlan::input_bytes() const {
  switch (collective_) {
    case Collective::allgather:
    case Collective::gather:
      return block_bytes(rank_);
    case Collective::broadcast:
    case Collective::scatter:
      return rank_ == root_ ? total_ : 0;
    default:
      return total_;
  }
}

// The bytes of the last, shorter step are divided evenly among the owners, too.
ShmPlan::Segment ShmPlan::vector_segment(uint64_t step, int owner) const {
  const std::size_t whole = slice_ * static_cast<std::size_t>(ranks_);
  const std::size_t begin = step * whole;
  const std::size_t bytes = std::min(whole, total_ - begin);
  const std::size_t share = round_up(parts_of(bytes, static_cast<std::size_t>(ranks_)), kSliceGrain);
  const std::size_t first = std::min(at(owner) * share, bytes);
  return {begin + first, std::min(share, bytes - first), first};
}

ShmPlan::Segment ShmPlan::block_segment(const Block& block, uint64_t step, std::size_t capacity,
                                        std::size_t slot) const {
  const std::size_t begin = std::min<std::size_t>(step * capacity, block.bytes);
  return {block.offset + begin, std::min(capacity, block.bytes - begin), slot};
}

ShmPlan::Segment ShmPlan::input_segment(uint64_t step, int owner) const {
  const std::size_t capacity = slice_ * static_cast<std::size_t>(ranks_);
  switch (collective_) {
    case Collective::allreduce:
    case Collective::reduce:
      return vector_segment(step, owner);
    case Collective::broadcast:
      return block_segment({0, total_}, step, capacity, 0);
    case Collective::allgather:
    case Collective::gather:
      return block_segment({0, block_bytes(rank_)}, step, capacity, 0);
    default:
      return block_segment(blocks_[at(owner)], step, slice_, at(owner) * slice_);
  }
}

ShmPlan::Segment ShmPlan::output_segment(uint64_t step, int source) const {
  const std::size_t capacity = slice_ * static_cast<std::size_t>(ranks_);
  switch (collective_) {
    case Collective::allreduce:
    case Collective::reduce:
      return vector_segment(step, source);
    case Collective::broadcast:
      return block_segment({0, total_}, step, capacity, 0);
    case Collective::allgather:
    case Collective::gather:
      return block_segment(blocks_[at(source)], step, capacity, 0);
    case Collective::alltoall:
      return block_segment(arriving_[at(source)], step, slice_, at(rank_) * slice_);
    default:  // reduce_scatter, scatter: this rank's own block
      return block_segment({0, block_bytes(rank_)}, step, slice_, at(rank_) * slice_);
  }
}

}  // namespace fdl
