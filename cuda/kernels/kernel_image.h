// KernelImage is the compiled kernels, which are embedded in the library.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace fdl::cuda {

struct KernelImage {
  std::span<const std::byte> machine_code;  // for the architectures of the build; empty without nvcc
  // PTX for the driver to compile, in a PTX version that older drivers accept. Without nvcc: a module without kernels.
  std::span<const std::byte> portable;
  std::string_view compiler;  // "nvcc 13.0", or "no nvcc"
};

const KernelImage& kernel_image();

}  // namespace fdl::cuda
