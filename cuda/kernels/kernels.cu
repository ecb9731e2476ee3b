// This file defines the kernels that pack, unpack and fold. Their bodies are in pack_math.h and reduce_math.h, which
// are also compiled for the CPU.
#include "cuda/kernels/kernels.h"

#define ROW(name, body, at_once)                                             \
  extern "C" __global__ void __launch_bounds__(fdl::cuda::kThreads, at_once) \
      name(const __grid_constant__ fdl::cuda::PackTable table) {             \
    using namespace fdl::cuda;                                               \
    body(table, blockIdx.x, threadIdx.x);                                    \
  }
FDL_PACK_KERNELS(ROW)
#undef ROW

#define ROW(name, type, kind)                                                   \
  extern "C" __global__ void __launch_bounds__(fdl::cuda::kThreads)             \
      fdl_reduce_##name(const __grid_constant__ fdl::cuda::ReduceTable table) { \
    fdl::cuda::reduce_part<fdl::Dtype::name>(table, blockIdx.x, threadIdx.x);   \
  }
FDL_DTYPES(ROW)
#undef ROW
