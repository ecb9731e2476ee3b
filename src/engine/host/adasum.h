// Adasum adds the parts of gradients that are orthogonal and averages the parts that are parallel. It is composed of
// ordered collectives.
//
// Two vectors become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, tensor by tensor: orthogonal vectors are added, equal
// vectors are averaged. Ranks combine in pairs, then pairs of pairs (Maleki et al., "Scaling Distributed Training with
// Adaptive Summation", 2020). Each level halves the range that a rank works on, so an element is combined once, by its
// owner:
//
//   4 ranks         rank 0     rank 1     rank 2     rank 3
//     level 0       [0, 1/2)   [1/2, 1)   [0, 1/2)   [1/2, 1)    0 with 1, 2 with 3: swap halves, combine what stays
//     level 1       [0, 1/4)   [1/2, 3/4) [1/4, 1/2) [3/4, 1)    0 with 2, 1 with 3
//     finally all ranks gather the quarters
//
// The dot products cover whole tensors. At each level every rank shares the products of its part, and all ranks add the
// parts of their block in rank order, so that the coefficients have the same bits everywhere.
#pragma once

#include <cstddef>
#include <vector>

#include "data/dtype.h"
#include "engine/communicator.h"

namespace fdl {

// Whether Adasum supports the type: only real ones. Types smaller than float32 are computed in float32.
constexpr bool adasum_takes(Dtype dtype) { return is_real(dtype); }
constexpr Dtype adasum_works_in(Dtype dtype) { return dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32; }

// Convert and copy between a tensor and the memory that Adasum works on, multiplying by a factor.
void adasum_load(Dtype dtype, std::byte* work, const void* tensor, std::size_t count, double factor);
void adasum_store(Dtype dtype, void* tensor, const std::byte* work, std::size_t count, double factor);

// One thread drives an Adasum together with its communicator: the caller alternates progress() of both.
class Adasum {
 public:
  // The group's size must be a power of two. `ends[i]` is where tensor i ends in `values`, in elements of `work`, which
  // is float32 or float64. `scratch` has the same size. The caller keeps both until done().
  Adasum(Communicator& comm, Dtype work, std::vector<std::size_t> ends, std::byte* values, std::byte* scratch);
  Adasum(const Adasum&) = delete;
  Adasum& operator=(const Adasum&) = delete;

  // Does the next unit of work, at most one pass over one tensor. Returns whether anything moved.
  bool progress();
  bool done() const { return stage_ == Stage::done; }
  const Status& status() const { return operation_.completion.status; }

 private:
  enum class Stage { exchange, dot, share_dots, combine, gather, place, done };
  struct Range {
    std::size_t begin, end;
    std::size_t count() const { return end - begin; }
  };

  Range halved(Range range, int rank, int level) const;
  Range owned_by(int rank) const;
  Range part_of(std::size_t tensor) const;
  bool keeps_left() const { return ((comm_.rank() >> level_) & 1) == 0; }
  void begin_level();
  void start(Collective collective, Dtype dtype, const void* input, void* output);
  void dot_one();
  void combine_one();
  void place_one();

  Communicator& comm_;
  Dtype work_;
  std::size_t element_;  // bytes
  std::vector<std::size_t> ends_;
  std::byte* values_;
  std::byte* scratch_;
  int level_ = 0;
  Range mine_;  // the elements that this rank still works on; halved at each level
  Stage stage_ = Stage::done;
  std::size_t index_ = 0;         // next tensor (dot, combine) or next rank (place)
  std::vector<double> dots_;      // a.b, a.a, b.b of this rank's part, for each tensor
  std::vector<double> all_dots_;  // dots_ of all ranks, in rank order
  std::vector<std::size_t> counts_;
  std::vector<std::size_t> recv_counts_;
  Operation operation_;
};

}  // namespace fdl
