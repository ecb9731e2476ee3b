// proves_schedules() decides whether a schedule is proved before its first run: always in debug builds, otherwise only
// on request.
#pragma once

#include "base/config.h"

namespace fdl {

inline bool proves_schedules(const Config& config, int ranks) {
  constexpr int kLargest = 64;  // ranks; tests prove larger groups, because a proof covers all ranks' schedules
#ifdef NDEBUG
  constexpr bool kAlways = false;
#else
  constexpr bool kAlways = true;
#endif
  return (kAlways || config.verify_schedules) && ranks <= kLargest;
}

}  // namespace fdl
