// These are the kernels of the fake libcuda by name: the bodies of cuda/, run over all blocks and threads.
#include <iterator>

#include "cuda/kernels/kernels.h"
#include "tests/fakes/cuda/fake_cuda_machine.h"

namespace fake {
namespace {

using namespace fdl::cuda;

template <class Table, class Body>
void run_all(const void* parameters, unsigned blocks, unsigned threads, Body body) {
  const auto& table = *static_cast<const Table*>(parameters);
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned thread = 0; thread < threads; ++thread) body(table, block, thread);
  }
}

const Kernel kKernels[] = {
#define ROW(name, body, at_once)                                                                     \
  {#name, sizeof(PackTable), [](const void* parameters, unsigned blocks, unsigned threads) {         \
     run_all<PackTable>(parameters, blocks, threads, [](const auto&... at) { return body(at...); }); \
   }},
    FDL_PACK_KERNELS(ROW)
#undef ROW
#define ROW(name, type, kind)                                                                                \
  {"fdl_reduce_" #name, sizeof(ReduceTable), [](const void* parameters, unsigned blocks, unsigned threads) { \
     run_all<ReduceTable>(parameters, blocks, threads,                                                       \
                          [](const auto&... at) { return reduce_part<fdl::Dtype::name>(at...); });           \
   }},
        FDL_DTYPES(ROW)
#undef ROW
};

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

}  // namespace fake
