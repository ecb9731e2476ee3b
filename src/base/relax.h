// relax() marks an iteration of a spin loop for the processor: the other hardware thread of the core runs meanwhile,
// and less power is used.
#pragma once

namespace fdl {

inline void relax() {
// A pause takes about 140 cycles on Intel processors since Skylake and about 10 on older ones, so callers limit their
// spinning by time and not by a number of iterations.
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace fdl
