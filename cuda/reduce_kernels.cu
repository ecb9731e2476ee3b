// Kernels that fold vectors, one for each element type; all they do is in reduce_math.h.
#include "cuda/kernels.h"

#define ROW(name, type, kind)                                                   \
  extern "C" __global__ void __launch_bounds__(fdl::cuda::kThreads)             \
      fdl_reduce_##name(const __grid_constant__ fdl::cuda::ReduceTable table) { \
    fdl::cuda::reduce_part<fdl::Dtype::name>(table, blockIdx.x, threadIdx.x);   \
  }
FDL_DTYPES(ROW)
#undef ROW
