// Kernels: their names in the module, one table for who defines, looks up and, in tests, runs them.
#pragma once

#include "cuda/pack_math.h"
#include "cuda/reduce_math.h"

// Name, body, of tables of many tensors; of how many blocks at once a processor keeps the registers: with more of them
// the compiler spills.
#define FDL_PACK_KERNELS(ROW)                                  \
  ROW(fdl_copy_pieces, copy_tile, 5)                           \
  ROW(fdl_scale_integer_pieces, change_tile<ScaleIntegers>, 5) \
  ROW(fdl_cast_pieces, change_tile<CastReals<float>>, 8)       \
  ROW(fdl_cast_float64_pieces, change_tile<CastReals<double>>, 5)

// Each dtype of FDL_DTYPES has a kernel fdl_reduce_<name>, whose body is reduce_part.
