// ShmWork moves and folds the bytes of one collective. ShmCollectives calls its functions when each step may be done.
#pragma once

#include <optional>

#include "transports/shm/collectives/shm_plan.h"
#include "transports/shm/collectives/shm_runs.h"
#include "transports/shm/shm_layout.h"

namespace fdl {

class ShmWork {
 public:
  ShmWork(const ShmLayout& layout, int rank, int ranks) : layout_(layout), rank_(rank), ranks_(ranks) {}

  // Plans the operation. `first_step` is the position of its first step. `buffers` must stay valid until it ends.
  void assign(const CollectiveSpec& spec, Buffers buffers, uint64_t operation, uint64_t first_step);
  const ShmPlan& plan() const { return plan_; }
  const CollectiveSpec& spec() const { return spec_; }
  Buffers buffers() const { return buffers_; }

  // ---- Small: everything at once, in the line of the operation or the small slot beside it ----
  void publish_small();
  // Whether this rank writes its small slot: the payload is larger than a line, or is a table.
  bool writes_small_slot() const;
  void take_small();
  // Whether the payload reaches into the second 64 bytes of the lines. A rank that polls a line then prefetches both.
  bool fills_line() const { return fills_line_; }
  // The same in two stages where a few ranks fold for all: a folder folds its share into its own slot; then all read
  // the shares.
  void fold_share();
  void take_shares();
  // Prefetches the small slot of the next operation for writing while this rank waits. The next operation is likely to
  // be of the same size, and the other ranks read that slot last.
  void fetch_next_slot() const;

  // ---- In steps: `position` counts the steps of all operations ----
  void publish(uint64_t position);
  void take(uint64_t position);
  void collect(uint64_t position);
  // Orders streamed stores; call it before the operation is reported as done.
  void finish() const;

  // ---- alltoall: blocks follow a table of their sizes in the small slot if they all fit, else they go in steps ----
  void publish_table();
  // A rank whose block for this rank has an unexpected size.
  std::optional<int> wrong_table() const;
  std::size_t announced_bytes(int source) const;  // size of the block from `source` for this rank
  // Plans the steps for the blocks that do not follow their tables.
  void read_tables();
  // Copies the blocks that do. Must come last: in place, it overwrites input that the steps have yet to publish.
  void take_following();

 private:
  const std::byte* input_at(std::size_t offset) const { return static_cast<const std::byte*>(buffers_.input) + offset; }
  std::byte* output_at(std::size_t offset) const { return static_cast<std::byte*>(buffers_.output) + offset; }
  std::byte* small(int rank) const;
  // Address of the result of an owner's share of a step.
  std::byte* result(int owner, uint64_t position, const ShmPlan::Segment& share) const;
  // Copies input into a slot: zeros if it is null, scaled if the prescale is not 1.
  void put_input(std::byte* slot, const std::byte* input, std::size_t bytes) const;
  // Copies to the output, past the caches if the operation is large.
  void write_output(void* output, const void* source, std::size_t bytes) const;
  bool streams_to(const ShmRuns::Run& run) const;
  void write_result(const ShmRuns::Run& run, std::size_t at, const std::byte* result, std::size_t bytes) const;
  void fold(void* target, std::span<const void* const> sources, std::size_t bytes) const;
  void fold_small();
  void fold_small_runs();
  void move_small();
  void fold_step(uint64_t position);
  void fold_run(ShmRuns::Run run, const ShmPlan::Segment& share, std::size_t at, uint64_t position);
  void move_step(uint64_t position);
  // Copies the block that a rank sends to itself.
  void move_own(uint64_t step);
  std::size_t count_of(std::size_t bytes) const { return bytes / plan_.element(); }

  const ShmLayout& layout_;
  const int rank_;
  const int ranks_;
  CollectiveSpec spec_;
  Buffers buffers_;
  ShmPlan plan_;
  bool fills_line_ = false;
  ShmRuns runs_;  // of the vector that is folded
  // Each stage walks the vector on its own.
  ShmRuns::Cursor published_;
  ShmRuns::Cursor taken_;
  ShmRuns::Cursor collected_;
  uint64_t operation_ = 0;
  uint64_t first_step_ = 0;
  RankMask following_ = 0;  // alltoall: ranks whose blocks follow their tables
};

}  // namespace fdl
