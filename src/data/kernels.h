// The kernel files provide these functions to reduce.cpp. Each function selects the code for this machine at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data/dtype.h"
#include "data/reduce.h"

// Instruction sets that would cost compile time and gain nothing. SSSE3 is older than any server in use. A fold is
// bound by memory, so SVE gains nothing over NEON; its vectors have no size at compile time, so they cannot be members
// of structs or arrays as here. Highway reads this macro, so this header must precede Highway's.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif

namespace fdl::kernels {

// A fold of source_count > 0 sources of `bytes` bytes each, from left to right, into target, which may be one of them.
struct Folding {
  uint8_t* target;
  const void* const* sources;
  std::size_t source_count;
  std::size_t bytes;

  const uint8_t* source(std::size_t k) const { return static_cast<const uint8_t*>(sources[k]); }
};

// One part of a longer fold of small reals. `before` is the unrounded result of the earlier parts; null if this is the
// first part. `after` receives the unrounded result; null if this is the last part, which rounds into folding.target.
struct Part {
  Folding folding;
  const float* before;
  float* after;
};

// A fold times a factor, or, where `divisor` is not 0, divided by that; it is written to every target, and
// folding.target is not used. Targets from `first_streamed` on are aligned to cache lines and written past the caches.
struct Spreading {
  Folding folding;
  uint8_t* const* targets;
  std::size_t target_count;
  double factor;
  int divisor;
  std::size_t first_streamed;
};

// Reals are divided by `divisor` where it is not 0, and otherwise multiplied with `factor`.
struct Scaling {
  uint8_t* target;
  const uint8_t* source;
  std::size_t bytes;
  double factor;
  int divisor;
};

// The caller passes Op::sum for an average.
void fold_integers(Dtype dtype, Op op, const Folding& folding);
void fold_logical(Op op, const Folding& folding);
void fold_reals(Dtype dtype, Op op, const Folding& folding);
void spread_reals(Dtype dtype, Op op, const Spreading& spreading);
void fold_small_reals(Dtype dtype, Op op, const Folding& folding);
void fold_part_of_small_reals(Dtype dtype, Op op, const Part& part);

void scale_integers(Dtype dtype, const Scaling& scaling);
void scale_reals(Dtype dtype, const Scaling& scaling);
void scale_small_reals(Dtype dtype, const Scaling& scaling);

// Returns Highway's name of the instruction set that was selected.
const char* target_name();

}  // namespace fdl::kernels
