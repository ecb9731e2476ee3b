// An average runs as a sum with a postscale, by which scale() divides: the quotient is rounded once.
#pragma once

#include "data/dtype.h"
#include "data/reduce.h"

namespace fdl {

// The factor that is applied to the sum of `size` ranks.
inline double postscale_of(Op op, Dtype dtype, int size) {
  if (op != Op::average || size == 1) return 1.0;
  return kind_of(dtype) == DtypeKind::integer ? dividing_factor(size) : 1.0 / size;
}

// The operation that the reduction kernels run for `op`.
inline Op folding(Op op) { return op == Op::average ? Op::sum : op; }

}  // namespace fdl
