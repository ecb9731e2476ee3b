// Kernel image: files that nvcc wrote, put into the library as they are.
#include "cuda/kernels/kernel_image.h"

#ifdef FDL_KERNELS
asm(".pushsection .rodata\n"
    ".balign 64\n"
    "fdl_kernels_machine_code:\n"
    ".incbin \"" FDL_KERNELS
    "/kernels.fatbin\"\n"
    "fdl_kernels_machine_code_end:\n"
    ".byte 0\n"
    ".balign 64\n"
    "fdl_kernels_portable:\n"
    ".incbin \"" FDL_KERNELS
    "/portable.fatbin\"\n"
    "fdl_kernels_portable_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" {
extern const std::byte fdl_kernels_machine_code[], fdl_kernels_machine_code_end[];
extern const std::byte fdl_kernels_portable[], fdl_kernels_portable_end[];
}
#endif

namespace fdl::cuda {

const KernelImage& kernel_image() {
#ifdef FDL_KERNELS
  static const KernelImage image{{fdl_kernels_machine_code, fdl_kernels_machine_code_end},
                                 {fdl_kernels_portable, fdl_kernels_portable_end},
                                 FDL_KERNELS_COMPILER};
#else
  static constexpr char kEmpty[] = ".version 7.8\n.target sm_75\n.address_size 64\n";
  static const KernelImage image{{}, std::as_bytes(std::span(kEmpty)), "no nvcc"};
#endif
  return image;
}

}  // namespace fdl::cuda
