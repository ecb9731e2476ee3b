// relax() marks an iteration of a spin loop for the processor: the other hardware thread of the core runs meanwhile,
// and less power is used.
#pragma once

namespace fdl {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace fdl
