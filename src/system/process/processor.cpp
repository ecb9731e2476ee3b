// This file implements leave_processor() by an affinity that lacks the current processor for a moment.
#include "system/process/processor.h"

#include <sched.h>

#include <cstddef>

namespace fdl {

int this_processor() { return ::sched_getcpu(); }

// Machines with more than 1024 processors do not fit into cpu_set_t: the first call fails there, and nothing moves.
bool leave_processor() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  const int here = this_processor();
  if (here < 0 || here >= CPU_SETSIZE) return false;
  cpu_set_t others = allowed;
  CPU_CLR(static_cast<std::size_t>(here), &others);
  if (CPU_COUNT(&others) == 0 || ::sched_setaffinity(0, sizeof others, &others) != 0) return false;
  return ::sched_setaffinity(0, sizeof allowed, &allowed) == 0;
}

}  // namespace fdl
