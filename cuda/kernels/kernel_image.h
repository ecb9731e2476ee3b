// Kernel image: the compiled kernels that are part of the library.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace fdl::cuda {

struct KernelImage {
  std::span<const std::byte> machine_code;  // for the architectures of the build; empty where there was no nvcc
  // For the driver to compile, in words that drivers older than nvcc know. Without nvcc: a module without kernels.
  std::span<const std::byte> portable;
  std::string_view compiler;  // "nvcc 13.0", or "no nvcc"
};

const KernelImage& kernel_image();

}  // namespace fdl::cuda
