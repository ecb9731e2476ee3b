// Kernels: their names in the module, one table for who defines, looks up and, in tests, runs them.
#pragma once

#include "cuda/pack_math.h"
#include "cuda/reduce_math.h"

// Name, body, of tables of many tensors.
#define FDL_PACK_KERNELS(ROW)                               \
  ROW(fdl_copy_pieces, copy_tile)                           \
  ROW(fdl_scale_integer_pieces, change_tile<ScaleIntegers>) \
  ROW(fdl_cast_pieces, change_tile<CastReals<float>>)       \
  ROW(fdl_cast_float64_pieces, change_tile<CastReals<double>>)

// Each dtype of FDL_DTYPES has a kernel fdl_reduce_<name>, whose body is reduce_part.
