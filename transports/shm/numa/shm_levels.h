// ShmLevels: moves and folds the bytes of one collective over NUMA nodes, step by step, when the collectives say that
// it is time.
//
// Inputs are read from slots, or where the host's memory holds them from where they lie. What a rank folds or fetches
// stands in its own slot of results: first a sum that goes on to the next node, later the result that its node reads.
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

  // False: not this way. `flat` outlives the operation.
  bool assign(const CollectiveSpec& spec, Buffers buffers, const ShmPlan& flat);
  const ShmLevelPlan& plan() const { return plan_; }
  void begin(uint64_t first_step) { first_step_ = first_step; }
  // From now on this rank's input is read there; of all whose input this rank reads, none is in a slot.
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
  // Before anybody hears that the operation is done.
  void finish() const;

  // How many bytes this rank has read of what ranks of other nodes wrote.
  uint64_t crossed_bytes() const { return crossed_bytes_; }

 private:
  using Share = ShmLevelPlan::Share;
  bool is_scaled() const { return plan_.folds() && spec_.prescale != 1; }
  std::size_t wider() const { return plan_.folds() ? partial_size_ / element_ : 1; }
  std::size_t block_offset(int block) const { return one_block_ ? 0 : flat_->block_offset(block); }
  const std::byte* input_of(int rank, int block, std::size_t offset, uint64_t position) const;
  std::byte* result_of(int rank, int block, uint64_t position) const;
  std::byte* output_at(std::size_t offset) const { return static_cast<std::byte*>(buffers_.output) + offset; }
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
