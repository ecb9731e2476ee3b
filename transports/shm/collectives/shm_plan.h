// ShmPlan cuts one collective into steps and defines which bytes go through which slot and which ranks this rank reads
// from. It is pure arithmetic, the same on all ranks.
//
//   allreduce of 2 steps, 3 ranks: each rank owns one slice of each step and folds it from the inputs of all
//
//     vector   | step 0            | step 1       |
//     owners   |  0  |  1  |  2    | 0 | 1  |  2  |
//
// Collectives with blocks (reduce_scatter, scatter, alltoall) take one slice of every rank's block in each step. In
// allgather and gather a rank publishes a whole step's input of its own block.
#pragma once

#include <array>

#include "contract/collectives.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {

class ShmPlan {
 public:
  // A segment of a vector or a block: its place there and its place in a step's slot, in bytes.
  struct Segment {
    std::size_t offset;
    std::size_t bytes;
    std::size_t slot;
  };

  // `slice_bytes` is the layout's: the most bytes of one owner in one step.
  void assign(const CollectiveSpec& spec, int rank, int ranks, std::size_t slice_bytes);

  Collective collective() const { return collective_; }
  bool folds() const;  // combines values rather than moving them
  bool small() const { return small_; }
  // Large buffers are assumed to be in no cache before the operation, nor needed there after it.
  bool is_large() const { return total_ >= kLargeBytes; }
  // Two ranks swap slots: a result is written over the other rank's input, in lines that the owner has already fetched,
  // and returns to the rank that writes there next. Each line travels twice instead of four times.
  bool swaps() const { return collective_ == Collective::allreduce && ranks_ == 2; }
  // In a small allreduce of many ranks these few ranks fold a share each for all. Empty: every rank folds everything.
  RankMask folders() const { return folders_; }
  // The share of `folder`.
  Segment folded_segment(int folder) const;
  bool publishes() const { return publishes_; }            // whether this rank publishes steps
  RankMask take_from() const { return take_from_; }        // ranks whose input this rank reads
  RankMask collect_from() const { return collect_from_; }  // ranks whose results this rank reads
  uint64_t steps() const { return steps_; }
  std::size_t element() const { return element_; }
  int root() const { return root_; }

  // The segment of the input that `owner` takes or folds in this step.
  Segment input_segment(uint64_t step, int owner) const;
  // The segment of the output that comes from `source` in this step. For folding collectives: the result of that owner.
  Segment output_segment(uint64_t step, int source) const;
  // Bytes that `rank` publishes in its small slot.
  std::size_t small_bytes(int rank) const;
  std::size_t input_bytes() const;  // of this rank
  std::size_t block_bytes(int rank) const { return blocks_[at(rank)].bytes; }
  std::size_t block_offset(int rank) const { return blocks_[at(rank)].offset; }
  // alltoall: the block that arrives from `rank`, in the output.
  std::size_t arriving_bytes(int rank) const { return arriving_[at(rank)].bytes; }
  std::size_t arriving_offset(int rank) const { return arriving_[at(rank)].offset; }
  std::size_t total_bytes() const { return total_; }  // of the vector, or of all blocks

  // For alltoall these are set only after the tables: the largest block that any rank sends in steps, the ranks whose
  // blocks have already arrived, and whether this rank has blocks to publish.
  void steps_for_largest_block(std::size_t bytes, RankMask already_taken, bool publishes);

 private:
  static constexpr std::size_t kLargeBytes = 64_KiB;
  // A range of bytes in the input or output.
  struct Block {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  using Blocks = std::array<Block, kMaxShmRanks>;

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  static std::size_t lay_out(Blocks& blocks, std::span<const std::size_t> counts, std::size_t element);
  void assign_blocks(const CollectiveSpec& spec);
  void assign_masks();
  void assign_steps();
  void assign_folders();
  Segment vector_segment(uint64_t step, int owner) const;
  Segment block_segment(const Block& block, uint64_t step, std::size_t capacity, std::size_t slot) const;

  Collective collective_ = Collective::barrier;
  int rank_ = 0;
  int ranks_ = 1;
  int root_ = 0;
  std::size_t element_ = 1;
  std::size_t total_ = 0;
  std::size_t slice_ = 64;  // bytes of one owner in one step
  bool small_ = true;
  RankMask folders_ = 0;
  std::size_t folded_ = 0;  // bytes of one folder's share
  bool publishes_ = false;
  RankMask take_from_ = 0;
  RankMask collect_from_ = 0;
  uint64_t steps_ = 0;
  Blocks blocks_;
  Blocks arriving_;  // alltoall: what this rank receives from each
};

}  // namespace fdl
