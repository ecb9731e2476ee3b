// This header lists the kernels in one table for the code that defines them, looks them up and, in tests, runs them on
// the CPU.
#pragma once

#include "cuda/kernels/one_shot_math.h"
#include "cuda/kernels/pack_math.h"
#include "cuda/kernels/reduce_math.h"

// Name, body, and the number of blocks for whose registers a multiprocessor must have registers at once. Larger numbers
// make the compiler spill registers.
#define FDL_PACK_KERNELS(ROW)                                     \
  ROW(fdl_copy_segments, copy_tile, 5)                            \
  ROW(fdl_scale_integer_segments, change_tile<ScaleIntegers>, 5)  \
  ROW(fdl_cast_segments, change_tile<MultiplyReals>, 8)           \
  ROW(fdl_cast_float64_segments, change_tile<MultiplyFloat64>, 5) \
  ROW(fdl_divide_segments, change_tile<DivideReals>, 5)           \
  ROW(fdl_divide_float64_segments, change_tile<DivideFloat64>, 4)

// Each dtype of FDL_DTYPES has a kernel fdl_reduce_<name>, whose body is reduce_part, and a kernel fdl_one_shot_<name>,
// whose parts are in one_shot_math.h.
