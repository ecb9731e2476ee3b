// 02_fusion: named operations. Ranks submit tensors in any order; the library agrees on those that are ready and fuses
// them.
//
//   farandole run -np 2 build/bin/02_fusion
//
// Rank 0 submits its thousand gradients from the first to the last, every other rank from the last to the first. All
// are summed, in far fewer collectives than tensors. The counters at the end show how many.
#include <cstdio>
#include <farandole/farandole.hpp>
#include <string>
#include <vector>

namespace {

constexpr int kTensors = 1000;
constexpr std::size_t kElements = 256;

}  // namespace

int main() try {
  fdl::World world;
  std::vector<std::vector<float>> gradients(kTensors);
  for (int i = 0; i < kTensors; ++i) gradients[i].assign(kElements, static_cast<float>(i + world.rank()));

  std::vector<fdl::Handle> handles;
  for (int k = 0; k < kTensors; ++k) {
    const int i = world.rank() == 0 ? k : kTensors - 1 - k;
    fdl::Batch batch;
    batch.allreduce("gradient." + std::to_string(i), gradients[i].data(), kElements, FDL_SUM);
    handles.push_back(batch.submit(world.all()));
  }
  for (const fdl::Handle& handle : handles) handle.wait();

  // The sum over ranks of i + rank.
  const int size = world.size();
  for (int i = 0; i < kTensors; ++i) {
    const auto expected = static_cast<float>(i * size + size * (size - 1) / 2);
    for (float value : gradients[i]) {
      if (value != expected) {
        std::fprintf(stderr, "gradient %d holds %g, expected %g\n", i, value, expected);
        return 1;
      }
    }
  }
  fdl_counters counters{};
  counters.struct_size = sizeof counters;
  fdl::check(fdl_metrics(world.get(), &counters));
  std::printf("rank %d: %llu tensors in %llu collectives, %llu control messages\n", world.rank(),
              static_cast<unsigned long long>(counters.named_operations),
              static_cast<unsigned long long>(counters.buckets),
              static_cast<unsigned long long>(counters.control_messages));
  return 0;
} catch (const fdl::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
