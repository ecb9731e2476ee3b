// What the kernel files offer to reduce.cpp: each function picks, at run time, the code for this machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data/dtype.h"
#include "data/reduce.h"

// Instruction sets that would cost compile time and win nothing: SSSE3 is older than any server in use, and a fold is
// bound by memory, so SVE gains nothing over NEON; nor may its vectors, which have no size before run time, be kept in
// a struct or an array, as several are here. Read by Highway, so this header comes before its headers.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif

namespace fdl::kernels {

// n sources of `bytes` bytes each, folded from left to right into target, which may be one of them. n > 0.
struct Folding {
  uint8_t* target;
  const void* const* sources;
  std::size_t source_count;
  std::size_t bytes;

  const uint8_t* source(std::size_t k) const { return static_cast<const uint8_t*>(sources[k]); }
};

// A fold of small reals that began or goes on elsewhere: `before` comes first of all, and the result is left in
// `after`; both are unrounded. Null: it begins with the first source, or ends here in the folding's target.
struct Part {
  Folding folding;
  const float* before;
  float* after;
};

// The same fold times a factor, into every target; the folding's own target is not used. From `first_streamed` on,
// targets are written past the caches and lie on cache lines.
struct Spreading {
  Folding folding;
  uint8_t* const* targets;
  std::size_t target_count;
  double factor;
  std::size_t first_streamed;
};

struct Scaling {
  uint8_t* target;
  const uint8_t* source;
  std::size_t bytes;
  double factor;
};

// average is spelt sum here.
void fold_integers(Dtype dtype, Op op, const Folding& folding);
void fold_logical(Op op, const Folding& folding);
void fold_reals(Dtype dtype, Op op, const Folding& folding);
void spread_reals(Dtype dtype, Op op, const Spreading& spreading);
void fold_small_reals(Dtype dtype, Op op, const Folding& folding);
void fold_part_of_small_reals(Dtype dtype, Op op, const Part& part);

void scale_integers(Dtype dtype, const Scaling& scaling);
void scale_reals(Dtype dtype, const Scaling& scaling);
void scale_small_reals(Dtype dtype, const Scaling& scaling);

const char* target_name();

}  // namespace fdl::kernels
