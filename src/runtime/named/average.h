// An average runs as a sum with a postscale; its result is exact where the quotient is exact.
#pragma once

#include <cmath>

#include "data/dtype.h"
#include "data/reduce.h"

namespace fdl {

// The factor that is applied to the sum of `size` ranks. Integers are scaled in float64 and rounded toward zero, where
// 49 * (1.0 / 49) would become 0: one unit in the last place upward makes every exact quotient exact (for magnitudes
// below 2^52).
inline double postscale_of(Op op, Dtype dtype, int size) {
  if (op != Op::average || size == 1) return 1.0;
  const double factor = 1.0 / size;
  return kind_of(dtype) == DtypeKind::integer ? std::nextafter(factor, 1.0) : factor;
}

// The operation that the reduction kernels run for `op`.
inline Op folding(Op op) { return op == Op::average ? Op::sum : op; }

}  // namespace fdl
