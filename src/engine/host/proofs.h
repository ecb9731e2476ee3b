// Proofs: when a schedule is proved before its first run: always in debug builds, else where it is asked for.
#pragma once

#include "base/config.h"

namespace fdl {

inline bool proves_schedules(const Config& config, int ranks) {
  constexpr int kLargest = 64;  // ranks; proofs of larger groups belong into tests
#ifdef NDEBUG
  constexpr bool kAlways = false;
#else
  constexpr bool kAlways = true;
#endif
  return (kAlways || config.verify_schedules) && ranks <= kLargest;
}

}  // namespace fdl
