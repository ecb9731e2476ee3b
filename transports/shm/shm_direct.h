// ShmDirect runs one collective on memory that all ranks of the host map. Each rank reads the others' buffers and,
// where results are shared, writes into them; nothing is staged.
//
// Each rank announces where its buffers are. If all buffers that other ranks need are in the host's shared memory, all
// ranks use this path. One rank folds an element, from all inputs in rank order, so the bits are those of the path in
// steps. shm_collectives decides when: no rank begins before all have agreed, and none returns before all have
// finished.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "contract/host_memory.h"
#include "transports/shm/collectives/shm_plan.h"
#include "transports/shm/shm_layout.h"

namespace fdl {

class ShmDirect {
 public:
  ShmDirect(const ShmLayout& layout, std::shared_ptr<HostMemory> memory, int rank, int ranks);

  // Writes the places of this rank's buffers into the line of an operation that is not small. Call it before the line
  // is published. False if other ranks could not use the buffers; then no rank takes this path.
  bool announce(const CollectiveSpec& spec, Buffers buffers, const ShmPlan& plan, uint64_t operation);
  // The ranks whose buffers others need. All ranks take this path once the lines of all voters are here and none
  // refused.
  RankMask voters() const { return voters_; }
  bool refused_by(RankMask announced) const;

  // Call after all voters have agreed. Plans this rank's share of the work.
  void begin();
  // The input of a voter, valid after begin().
  const std::byte* input_of(int rank) const { return inputs_[static_cast<std::size_t>(rank)]; }
  // work() does the next segment of this rank's share.
  bool has_work() const { return job_ < job_count_; }
  void work();
  // Call after a failure while others may still write into this rank's output: takes the output out of the shared
  // memory.
  void withdraw();

 private:
  // Places of a rank's buffers in the host's memory. They are in the rank's line, behind the note of alltoall
  // (shm_work).
  struct Places {
    uint64_t input;
    uint64_t output;
  };
  // A range of this rank's work: bytes from one rank, or a fold of the same range of all inputs.
  struct Job {
    const std::byte* source;  // null: fold
    std::size_t offset;       // in the outputs; of a fold also in the inputs, behind shift_
    std::size_t bytes;
  };

  Places places_of(int rank) const;
  uint64_t place_if(bool needed, const void* memory, std::size_t bytes) const;
  void add_job(const std::byte* source, std::size_t offset, std::size_t bytes);
  // Set outputs_ and jobs_ for this rank's share.
  void lay_out_fold();
  void lay_out_moves();
  const std::byte* block_for_me(int source) const;
  // `offset` is in the outputs and `bytes` is at most one segment.
  void fold(std::size_t offset, std::size_t bytes);
  void fold_in_one_pass(std::size_t offset, std::size_t bytes);
  void fold_block(std::size_t offset, std::size_t bytes);
  std::span<const void* const> sources_at(std::size_t offset, std::size_t bytes);

  const ShmLayout& layout_;
  const std::shared_ptr<HostMemory> memory_;
  const int rank_;
  const int ranks_;
  std::vector<std::byte> scratch_;  // one block of results, then one of each rank's scaled input

  CollectiveSpec spec_;
  Buffers buffers_;
  const ShmPlan* plan_ = nullptr;
  uint64_t operation_ = 0;
  RankMask voters_ = 0;
  std::array<const std::byte*, kMaxShmRanks> inputs_;
  std::array<std::byte*, kMaxShmRanks> outputs_;  // that this rank writes
  std::size_t output_count_ = 0;
  std::size_t first_streamed_ = 0;  // outputs from this index on are written past the caches
  bool one_pass_ = false;           // a single kernel folds, scales and writes to all outputs
  std::size_t shift_ = 0;           // reduce_scatter: offset of this rank's block in the inputs
  std::array<const void*, kMaxShmRanks> sources_;
  std::array<Job, kMaxShmRanks> jobs_;
  std::size_t job_count_ = 0;
  std::size_t job_ = 0;   // the current one
  std::size_t done_ = 0;  // bytes of the current job
};

}  // namespace fdl
