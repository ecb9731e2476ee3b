// These are the kernels of the fake libcuda by name: the bodies of cuda/, run over all blocks and threads.
#include <iterator>
#include <string_view>

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

// Blocks run one after the other here, and the threads of a block step by step. So block b of each rank waits for the
// blocks b of the others, which the threads of the other ranks' streams run.
template <fdl::Dtype kDtype>
void run_one_shot(const void* parameters, unsigned blocks, unsigned threads) {
  const auto& table = *static_cast<const OneShotTable*>(parameters);
  const uint32_t number = one_shot_number(table);
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned thread = 0; thread < threads; ++thread) one_shot_write<kDtype>(table, number, block, thread);
    bool arrived = true;
    for (unsigned rank = 0; rank < table.ranks; ++rank) one_shot_signal(table, number, block, rank);
    for (unsigned rank = 0; rank < table.ranks; ++rank) arrived &= one_shot_wait(table, number, block, rank);
    if (!arrived) continue;
    for (unsigned thread = 0; thread < threads; ++thread) one_shot_fold<kDtype>(table, number, block, thread);
    one_shot_end(table, number);
  }
}

// A copy counts in bytes, the other kernels in elements.
void count_narrow(const PackTable& table, std::string_view kernel) {
  const std::size_t size = kernel == "fdl_copy_segments" ? 1 : fdl::size_of(table.in_packed);
  const auto is_aligned = [](const std::byte* memory) { return reinterpret_cast<std::uintptr_t>(memory) % 16 == 0; };
  for (uint32_t i = 0; i < table.segment_count; ++i) {
    narrow_segments += is_aligned(table.tensor[i]) && !is_aligned(table.packed + table.first[i] * size);
  }
}

const Kernel kKernels[] = {
#define ROW(name, body, at_once)                                                                     \
  {#name, sizeof(PackTable), [](const void* parameters, unsigned blocks, unsigned threads) {         \
     count_narrow(*static_cast<const PackTable*>(parameters), #name);                                \
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
#define ROW(name, type, kind) {"fdl_one_shot_" #name, sizeof(OneShotTable), run_one_shot<fdl::Dtype::name>},
            FDL_DTYPES(ROW)
#undef ROW
};

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

}  // namespace fake
