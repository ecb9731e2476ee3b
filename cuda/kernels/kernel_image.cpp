// kernel_image() returns the files that nvcc wrote, which the assembler embeds unchanged.
#include "cuda/kernels/kernel_image.h"

#ifdef FDL_KERNELS
// .incbin embeds the files without an intermediate source file. The extra byte gives each symbol a distinct address.
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
  // An empty PTX module: drivers load it, and every kernel is reported as missing.
  static constexpr char kEmpty[] = ".version 7.8\n.target sm_75\n.address_size 64\n";
  static const KernelImage image{{}, std::as_bytes(std::span(kEmpty)), "no nvcc"};
#endif
  return image;
}

}  // namespace fdl::cuda
