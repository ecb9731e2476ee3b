// An average runs as a sum with a postscale, by which scale() divides: the quotient is rounded once.
#pragma once

#include "data/reduce.h"

namespace fdl {

// The factor that is applied to the sum of `size` ranks.
inline double postscale_of(Op op, int size) { return op == Op::average ? 1.0 / size : 1.0; }

// The operation that the reduction kernels run for `op`.
inline Op folding(Op op) { return op == Op::average ? Op::sum : op; }

}  // namespace fdl
