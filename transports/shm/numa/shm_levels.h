// ShmLevels moves and folds the bytes of one collective over NUMA nodes. ShmCollectives calls its functions when each
// step may be done.
//
// Inputs are read from slots, or in place if they are in the host's shared memory. A rank writes what it folds or
// fetches to its own slot of results: first a sum for the next node, later the result for its own node.
#pragma once

#include <array>

#include "transports/shm/collectives/shm_runs.h"
#include "transports/shm/numa/shm_level_plan.h"
#include "transports/shm/shm_layout.h"

namespace fdl {

class ShmLevels {
 public:
  ShmLevels(const ShmLayout& layout, const ShmNodes& nodes, int rank, int ranks)
      : layout_(layout), nodes_(nodes), plan_(nodes, rank, ranks), rank_(rank) {}

  // False: the plan stays flat. `flat` must outlive the operation.
  bool assign(const CollectiveSpec& spec, Buffers buffers, const ShmPlan& flat);
  const ShmLevelPlan& plan() const { return plan_; }
  void begin(uint64_t first_step) { first_step_ = first_step; }
  // Reads the input of `rank` from `input` instead of its slot. Call it for every rank whose input this rank reads, or
  // for none.
  void read_in_place(int rank, const std::byte* input) {
    inputs_[static_cast<std::size_t>(rank)] = input;
    in_place_ = true;
  }
  bool in_place() const { return in_place_; }

  // `position` counts the steps of all operations.
  void publish(uint64_t position);
  void take(uint64_t position);
  void fetch(uint64_t position);
  void collect(uint64_t position);
  // Orders streamed stores; call it before the operation is reported as done.
  void finish() const;

  // Bytes written by ranks of other nodes that this rank has read so far.
  uint64_t crossed_bytes() const { return crossed_bytes_; }

 private:
  using Share = ShmLevelPlan::Share;
  // Whether inputs must be scaled before they are folded.
  bool is_scaled() const { return plan_.folds() && spec_.prescale != 1; }
  // The size of a partial sum in elements.
  std::size_t wider() const { return plan_.folds() ? partial_size_ / element_ : 1; }
  std::size_t block_offset(int block) const { return one_block_ ? 0 : flat_->block_offset(block); }
  const std::byte* input_of(int rank, int block, std::size_t offset, uint64_t position) const;
  std::byte* result_of(int rank, int block, uint64_t position) const;
  std::byte* output_at(std::size_t offset) const { return static_cast<std::byte*>(buffers_.output) + offset; }
  // Copies input into a slot: zeros if it is null, scaled if the prescale is not 1.
  void put(std::byte* slot, const std::byte* input, std::size_t bytes) const;

  template <typename Visit>
  void each_share_of(int node, int block, uint64_t position, Share range, Visit visit);
  void take_sums(uint64_t position);
  void fold(const ShmRuns::Run& run, int block, Share part, std::size_t mine, const std::byte* before,
            uint64_t position);
  void take_moves(uint64_t position);
  void collect_vector(uint64_t position);
  void collect_block(int block, uint64_t position);

  const ShmLayout& layout_;
  const ShmNodes& nodes_;
  ShmLevelPlan plan_;
  const int rank_;
  CollectiveSpec spec_;
  Buffers buffers_;
  // Sizes and offsets of the blocks.
  const ShmPlan* flat_ = nullptr;
  bool one_block_ = false;
  std::size_t element_ = 1;
  std::size_t partial_size_ = 1;
  std::array<const std::byte*, kMaxShmRanks> inputs_{};
  bool in_place_ = false;
  ShmRuns runs_;  // of the vector that is folded
  ShmRuns::Cursor published_;
  ShmRuns::Cursor taken_;
  ShmRuns::Cursor collected_;
  uint64_t first_step_ = 0;
  uint64_t crossed_bytes_ = 0;
};

}  // namespace fdl
