// Adasum: adds what gradients have apart and averages what they share; a composition of ordered collectives.
//
// Two vectors become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, tensor by tensor: orthogonal ones are added, equal
// ones averaged. Ranks combine in pairs, then pairs of pairs (Maleki et al., "Scaling Distributed Training with
// Adaptive Summation", 2020). Each level halves the range that a rank works on, so an element is combined once, by its
// owner:
//
//   4 ranks         rank 0     rank 1     rank 2     rank 3
//     level 0       [0, 1/2)   [1/2, 1)   [0, 1/2)   [1/2, 1)    0 with 1, 2 with 3: swap halves, combine what stays
//     level 1       [0, 1/4)   [1/2, 3/4) [1/4, 1/2) [3/4, 1)    0 with 2, 1 with 3
//     then all gather the quarters
//
// The dot products of a tensor are those of the whole tensor: at each level every rank tells its part, and all add the
// parts of their block in rank order, so that the coefficients are the same bits everywhere.
#pragma once

#include <cstddef>
#include <vector>

#include "data/dtype.h"
#include "engine/communicator.h"

namespace fdl {

// Types that Adasum takes: real ones. Small ones are computed in float32.
constexpr bool adasum_takes(Dtype dtype) {
  return kind_of(dtype) == DtypeKind::real || kind_of(dtype) == DtypeKind::small_real;
}
constexpr Dtype adasum_works_in(Dtype dtype) { return dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32; }

// Between a tensor and the memory that Adasum works on, with a factor.
void adasum_load(Dtype dtype, std::byte* work, const void* tensor, std::size_t count, double factor);
void adasum_store(Dtype dtype, void* tensor, const std::byte* work, std::size_t count, double factor);

class Adasum {
 public:
  // The group's size is a power of two. `ends[i]` is where tensor i ends in `values`, in elements of `work`, which is
  // float32 or float64; `scratch` is as long. Both stay until done.
  Adasum(Communicator& comm, Dtype work, std::vector<std::size_t> ends, std::byte* values, std::byte* scratch);
  Adasum(const Adasum&) = delete;
  Adasum& operator=(const Adasum&) = delete;

  // Does the next piece of work, no longer than a pass over one tensor; true if anything moved.
  bool progress();
  bool done() const { return stage_ == Stage::done; }
  const Status& status() const { return operation_.completion.status; }

 private:
  enum class Stage { exchange, dot, tell, combine, gather, place, done };
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
  Range mine_;
  Stage stage_ = Stage::done;
  std::size_t segment_ = 0;   // which tensor, or whose range, is next
  std::vector<double> dots_;  // a.b, a.a, b.b of this rank's part, tensor after tensor
  std::vector<double> told_;  // those of all ranks
  std::vector<std::size_t> counts_;
  std::vector<std::size_t> recv_counts_;
  Operation operation_;
};

}  // namespace fdl
