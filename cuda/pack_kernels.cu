// Kernels that pack and unpack many tensors in one launch; all they do is in pack_math.h.
#include "cuda/kernels.h"

#define ROW(name, body)                                             \
  extern "C" __global__ void __launch_bounds__(fdl::cuda::kThreads) \
      name(const __grid_constant__ fdl::cuda::PackTable table) {    \
    using namespace fdl::cuda;                                      \
    body(table, blockIdx.x, threadIdx.x);                           \
  }
FDL_PACK_KERNELS(ROW)
#undef ROW
