// Launches chooses the kernel for a request, fills its table and launches it. The module with the kernels is loaded
// when the device is opened.
#pragma once

#include <array>
#include <atomic>
#include <span>
#include <string_view>

#include "base/mutex.h"
#include "contract/device.h"
#include "cuda/calls.h"
#include "cuda/kernels/kernel_image.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/pack_tables.h"

namespace fdl::cuda {

class Launches {
 public:
  Launches(Calls& calls, const KernelImage& image) : calls_(calls), image_(image) {}
  ~Launches();

  // Loads the module at the first call; later calls return the same outcome. Any thread may call.
  Status load() FDL_EXCLUDES(mutex_);
  Status pack(Stream stream, const Packing& packing);
  Status reduce(Stream stream, Dtype dtype, Op op, void* target, std::span<const void* const> sources,
                std::size_t count, double factor);
  // Runs the table's number of blocks.
  Status sum_one_shot(Stream stream, Dtype dtype, const OneShotTable& table);

 private:
  // An index for each row of FDL_PACK_KERNELS.
  enum PackKernel {
#define ROW(name, body, at_once) k_##name,
    FDL_PACK_KERNELS(ROW)
#undef ROW
        kPackKernels
  };

  // Sets module_ from the machine code, or else from the portable image, which the driver compiles.
  Status load_now();
  Status find(const char* kernel, Function* function);
  Status look_up();
  Status launch(Function function, std::string_view name, uint64_t blocks, Stream stream, const void* table);

  Calls& calls_;
  const KernelImage& image_;
  Mutex mutex_;
  // Once set, module_ and the functions are constant and need no lock.
  std::atomic<bool> loaded_{false};
  bool tried_ FDL_GUARDED_BY(mutex_) = false;
  Status outcome_ FDL_GUARDED_BY(mutex_);
  Module module_ = nullptr;
  std::array<Function, kPackKernels> packers_{};
  std::array<Function, kDtypeCount> reducers_{};
  std::array<Function, kDtypeCount> one_shots_{};
};

}  // namespace fdl::cuda
