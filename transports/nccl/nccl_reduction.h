// nccl_reduction() decides which reductions NCCL does with the results of the CPU's kernels, and nccl_scaling() where
// factors are multiplied in. Pure.
//
// NCCL's own average is used where its results are those of the CPU:
//   integers                             NCCL divides the sum, rounded toward zero
//   floats, powers of two of ranks       NCCL multiplies each input by 1/ranks, which is exact; except for allreduces,
//                                        which take a sum with that factor (see NcclCollectives::operation_of())
// Among other numbers of ranks NCCL would round 1/ranks to the type, and each product once more: the average of three
// float32 sevens would be 7.0000005, in bfloat16 7.03. There a kernel divides the sum, which is rounded once.
#pragma once

#include <optional>

#include "data/dtype.h"
#include "data/reduce.h"
#include "transports/nccl/nccl_abi.h"

namespace fdl {

// The NCCL type and operation of a reduction; empty if owners must do it.
struct NcclReduction {
  nccl::Type type;
  nccl::RedOp op;
};
std::optional<NcclReduction> nccl_reduction(Dtype dtype, Op op, bool deterministic);

// Distributes the factors of postscale * reduce(prescale * x). Powers of two are exact wherever they are multiplied in,
// so NCCL's sums include them. All other factors are kernels before and after, with the CPU's rounding.
struct NcclScaling {
  double before = 1;
  double inside = 1;
  double after = 1;
};
NcclScaling nccl_scaling(Dtype dtype, Op op, double prescale, double postscale);

// Whether the sum of integers of `size` ranks, divided by `postscale`'s divisor, is NCCL's average.
bool is_integer_average(Dtype dtype, Op op, double postscale, int size);

}  // namespace fdl
