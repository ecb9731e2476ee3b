// This file defines the kernels that pack, unpack and fold. Their bodies are in pack_math.h, reduce_math.h and
// one_shot_math.h, which are also compiled for the CPU.
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

// The threads of a block meet between writing and signalling, and between waiting and folding.
#define ROW(name, type, kind)                                                      \
  extern "C" __global__ void __launch_bounds__(fdl::cuda::kThreads)                \
      fdl_one_shot_##name(const __grid_constant__ fdl::cuda::OneShotTable table) { \
    using namespace fdl::cuda;                                                     \
    const uint32_t number = one_shot_number(table);                                \
    one_shot_write<fdl::Dtype::name>(table, number, blockIdx.x, threadIdx.x);      \
    __syncthreads();                                                               \
    bool arrived = true;                                                           \
    if (threadIdx.x < table.ranks) {                                               \
      one_shot_signal(table, number, blockIdx.x, threadIdx.x);                     \
      arrived = one_shot_wait(table, number, blockIdx.x, threadIdx.x);             \
    }                                                                              \
    if (__syncthreads_and(arrived) == 0) return;                                   \
    one_shot_fold<fdl::Dtype::name>(table, number, blockIdx.x, threadIdx.x);       \
    if (threadIdx.x == 0) one_shot_end(table, number);                             \
  }
FDL_DTYPES(ROW)
#undef ROW
