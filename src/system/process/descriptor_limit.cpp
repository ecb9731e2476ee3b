// The limit is RLIMIT_NOFILE, of the process.
#include "system/process/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace fdl {

void raise_limit_of_descriptors(uint64_t needed) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min<rlim_t>(needed, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace fdl
