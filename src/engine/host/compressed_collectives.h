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
// A reduce-scatter ends with the fold, in float32; an allgather begins with the gather. Owners add in rank order and
// all ranks read the same bytes, so all ranks have the same bits in every run. Each owner bounds the errors of its
// chunk; the last gather carries the bounds, and all ranks return the largest. docs/compression.md has the proof.
//
// Long chunks pass in segments, so that this rank converts one while another one is on its way:
//
//     inner collectives   exchange 0   exchange 1   gather 0   exchange 2   gather 1   gather 2
//     conversions         quantise 1   fold 0 ...   fold 1, spread ...
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
  // What one rank owns of the vector, in elements.
  struct Chunk {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  // A conversion of all segments, piece by piece in the order in which they lie in a buffer.
  struct Conversion {
    std::size_t segment = 0;  // of the next piece
    std::size_t chunk = 0;    // in the segment
    std::size_t at = 0;       // elements of the chunk's part of the segment
    std::size_t bytes = 0;    // place in the buffer
  };
  enum class Inner : uint8_t { none, alone, exchange, gather };

  bool is(Collective kind) const { return spec_.collective == kind; }
  std::size_t ranks() const { return static_cast<std::size_t>(size_); }
  std::size_t me() const { return static_cast<std::size_t>(rank_); }

  void lay_out();
  std::size_t bytes_of(std::size_t elements) const;
  std::size_t bytes_before(std::size_t segment) const;
  Chunk part_of(std::size_t rank, std::size_t segment) const;
  std::size_t gathered_bytes(std::size_t rank, std::size_t segment) const;
  std::size_t gathered_at(std::size_t rank, std::size_t segment) const;
  std::size_t received_at(std::size_t segment) const;

  bool start_next();
  void start_inner(Inner kind, const CollectiveSpec& spec, Buffers buffers);
  void start_exchange(std::size_t segment);
  void start_gather(std::size_t segment);
  void end_inner();
  bool convert_piece();
  void quantise_piece();
  void fold_piece();
  void spread_piece();
  void fold(const std::byte* from, std::size_t stride, std::size_t first, std::size_t count, std::byte* to);
  void bound_fold(const std::byte* from, std::size_t stride, std::size_t count, const std::byte* result);
  double bound_alone() const;
  void raise_bound(double bound);
  bool is_complete() const;
  void report_bound();
  void conclude(Status outcome);

  const int rank_;
  const int size_;
  const Runner choose_;

  // The collective in flight.
  CollectiveSpec spec_;
  const float* input_ = nullptr;
  float* output_ = nullptr;
  Completion* completion_ = nullptr;
  std::size_t segments_ = 0;  // at least one, which may be empty
  Conversion quantised_;
  Conversion folded_;
  Conversion spread_;
  // Inner collectives that have been started; those before the one in flight have ended.
  std::size_t exchanges_ = 0;
  std::size_t gathers_ = 0;
  double bound_ = 0;  // the largest error of the blocks that this rank has folded, or has quantised for an allgather

  Inner kind_ = Inner::none;
  Collectives* inner_ = nullptr;
  CollectiveSpec inner_spec_;
  Completion inner_outcome_;
  Status ended_;

  // Memory that grows and stays. The buffers hold segment after segment, and in each the ranks in order.
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> counts_;
  std::vector<std::size_t> recv_counts_;
  Workspace sent_;      // this rank's blocks for each owner
  Workspace received_;  // the blocks of this rank's chunk from each rank
  Workspace
      gathered_;  // the blocks of the results from each owner; in the last segment, each owner's bound behind them
  std::vector<float> sums_;
};

}  // namespace fdl
