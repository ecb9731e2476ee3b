// Relax: tells the core that this is a loop that waits, so that its twin runs meanwhile and less power is burnt.
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
