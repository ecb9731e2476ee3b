// Kernels: their names in the module, one table for who defines, looks up and, in tests, runs them.
#pragma once

#include "cuda/kernels/pack_math.h"
#include "cuda/kernels/reduce_math.h"

// Name, body, of tables of many tensors; of how many blocks at once a processor keeps the registers: with more of them
// the compiler spills.
#define FDL_PACK_KERNELS(ROW)                                    \
  ROW(fdl_copy_segments, copy_tile, 5)                           \
  ROW(fdl_scale_integer_segments, change_tile<ScaleIntegers>, 5) \
  ROW(fdl_cast_segments, change_tile<CastReals<float>>, 8)       \
  ROW(fdl_cast_float64_segments, change_tile<CastReals<double>>, 5)

// Each dtype of FDL_DTYPES has a kernel fdl_reduce_<name>, whose body is reduce_part.
