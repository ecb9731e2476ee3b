// NcclReduction: which reductions NCCL does as the CPU does them, and where factors are multiplied in. Pure.
#pragma once

#include <optional>

#include "data/dtype.h"
#include "data/reduce.h"
#include "transports/nccl/nccl_abi.h"

namespace fdl {

// How NCCL itself would reduce, or nothing where owners do it.
struct NcclReduction {
  nccl::Type type;
  nccl::RedOp op;
};
std::optional<NcclReduction> nccl_reduction(Dtype dtype, Op op, bool deterministic);

// postscale * reduce(prescale * x) with the factors where they cost least: powers of two are exact wherever they are
// multiplied in, so NCCL's sums take them along; all others are kernels before and after, with the CPU's rounding.
struct NcclScaling {
  double before = 1;
  double inside = 1;
  double after = 1;
};
NcclScaling nccl_scaling(Dtype dtype, Op op, double prescale, double postscale);

}  // namespace fdl
