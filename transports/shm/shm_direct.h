// ShmDirect: one collective on memory that all ranks map: every rank reads the others' buffers themselves and, where
// results are shared, writes into them; nothing is staged.
//
// Each rank announces where its buffers lie; if those that others need are all of the host's memory, all take this way.
// An element is folded by one rank, from all inputs in rank order: the same bits as in steps. What is done when is
// shm_collectives' part: no rank begins before all have said that it may, none returns before all have finished.
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

  // Before the line of an operation that does not go at once is published: says in it where my buffers are.
  // False if they are not where the others could use them: then nobody takes this way.
  bool announce(const CollectiveSpec& spec, Buffers buffers, const ShmPlan& plan, uint64_t operation);
  // Whose word decides. Once all of them are heard and none refused, all ranks take this way.
  RankMask voters() const { return voters_; }
  bool refused_by(RankMask heard) const;

  void begin();
  // Of a voter, once begun.
  const std::byte* input_of(int rank) const { return inputs_[static_cast<std::size_t>(rank)]; }
  // The next piece of my share, for whom there is one.
  bool has_work() const { return job_ < job_count_; }
  void work();
  // The collective has failed and others may still be about to write into my output: it is theirs no more.
  void withdraw();

 private:
  // Where a rank's buffers are in the host's memory: in its line, behind what alltoall says there.
  struct Places {
    uint64_t input;
    uint64_t output;
  };
  // What this rank reads: from one rank, or where it folds at the same place from all.
  struct Job {
    const std::byte* source;
    std::size_t offset;  // in the outputs; where it folds, in the inputs too, less what `shift` says
    std::size_t bytes;
  };

  Places places_of(int rank) const;
  uint64_t place_if(bool needed, const void* memory, std::size_t bytes) const;
  void add_job(const std::byte* source, std::size_t offset, std::size_t bytes);
  void lay_out_fold();
  void lay_out_moves();
  const std::byte* block_for_me(int source) const;
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
  std::array<std::byte*, kMaxShmRanks> outputs_;  // to which I write
  std::size_t output_count_ = 0;
  std::size_t first_streamed_ = 0;  // of the outputs: from here on they are written past the caches
  bool one_pass_ = false;           // results are folded, scaled and written at once
  std::size_t shift_ = 0;           // reduce_scatter: where my block begins in the inputs
  std::array<const void*, kMaxShmRanks> sources_;
  std::array<Job, kMaxShmRanks> jobs_;
  std::size_t job_count_ = 0;
  std::size_t job_ = 0;   // the next
  std::size_t done_ = 0;  // bytes of it
};

}  // namespace fdl
