// CompressedCollectives runs collectives of float32 whose data passes between the ranks in a block format. It is
// composed of collectives on bytes.
//
// Each value is rounded when its rank sends it and when the sum is sent, whatever the number of ranks:
//
//   4 ranks        rank 0       rank 1       rank 2       rank 3
//     quantise     a0 a1 a2 a3  b0 b1 b2 b3  c0 c1 c2 c3  d0 d1 d2 d3    chunks, each cut into blocks
//     exchange     a0 b0 c0 d0  a1 b1 c1 d1  a2 b2 c2 d2  a3 b3 c3 d3    an alltoall
//     fold         s0           s1           s2           s3             a + b + c + d in float32, quantised
//     gather       s0 s1 s2 s3  on every rank, which dequantises them    an allgather
//
// A reduce-scatter ends with the fold, in float32; an allgather begins with the gather. Owners add in rank order and all
// ranks read the same bytes, so all ranks have the same bits in every run. Each owner bounds the errors of its chunk;
// the gather carries the bounds, and all ranks return the largest. docs/compression.md has the proof.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "contract/collectives.h"
#include "engine/host/scheduled_collectives.h"

namespace fdl {

// Whether a collective can be compressed: sums and averages of float32, and allgathers of it.
bool compresses(const CollectiveSpec& spec);

class CompressedCollectives final : public Collectives {
 public:
  // Chooses what runs a collective on bytes; the choice must be the same on all ranks. The caller owns the result, and
  // this object drives it while it works for it.
  using Runner = std::function<Collectives&(const CollectiveSpec&)>;
  CompressedCollectives(int rank, int size, Runner choose);

  std::string_view name() const override { return "compressed blocks"; }
  bool can(const CollectiveSpec& spec) const override { return compresses(spec); }
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override;
  std::string phase() const override;
  // The collectives that move bytes for this object now, or null.
  Collectives* at_work() const { return inner_; }

  // What runs the inner collectives wakes the thread.
  int wake_fd() const override { return -1; }
  bool prepare_to_sleep() override { return true; }
  void finish_sleep() override {}

 private:
  enum class Stage : uint8_t { idle, alone, quantise, exchange, fold, gather, spread };

  // What one rank owns of the vector.
  struct Chunk {
    std::size_t first = 0;  // elements
    std::size_t count = 0;
    std::size_t sent_at = 0;      // bytes: where it begins in `sent_`
    std::size_t gathered_at = 0;  // and in `gathered_`
  };

  void lay_out();
  std::size_t bytes_of(std::size_t elements) const;
  std::size_t gathered_bytes(const Chunk& chunk) const;
  const Chunk& own() const { return chunks_[static_cast<std::size_t>(rank_)]; }
  std::size_t take_piece(std::size_t count);
  bool quantise_piece();
  bool fold_piece();
  bool spread_piece();
  void fold(std::size_t first, std::size_t count);
  void bound_fold(std::size_t first, std::size_t count, const std::byte* result);
  void raise_bound(double bound);
  void start_inner(Stage stage, const CollectiveSpec& spec, Buffers buffers);
  void start_alone();
  double bound_alone() const;
  void start_exchange();
  void start_gather();
  void after_inner();
  void report_bound();
  void conclude(Status outcome);

  const int rank_;
  const int size_;
  const Runner choose_;

  // The collective in flight.
  Stage stage_ = Stage::idle;
  CollectiveSpec spec_;
  const float* input_ = nullptr;
  float* output_ = nullptr;
  Completion* completion_ = nullptr;
  std::size_t at_chunk_ = 0;  // progress of quantise and spread; `at_` also of fold
  std::size_t at_ = 0;        // elements of the chunk
  double bound_ = 0;          // of this rank's own chunk

  Collectives* inner_ = nullptr;
  CollectiveSpec inner_spec_;
  Completion inner_outcome_;
  Status ended_;

  // Memory that grows and stays.
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> counts_;
  std::vector<std::size_t> recv_counts_;
  Workspace sent_;      // this rank's blocks, chunk by chunk
  Workspace received_;  // the blocks of this rank's chunk, rank by rank
  Workspace gathered_;  // the blocks of the results and each owner's bound
  std::vector<float> sums_;
};

}  // namespace fdl
