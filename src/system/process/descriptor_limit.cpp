// The limit is RLIMIT_NOFILE, of the process.
#include "system/process/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace fdl {

uint64_t raise_limit_of_descriptors(uint64_t needed) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return RLIM_INFINITY;
  if (limit.rlim_cur >= needed) return limit.rlim_cur;
  const rlim_t before = std::exchange(limit.rlim_cur, std::min<rlim_t>(needed, limit.rlim_max));
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : before;
}

}  // namespace fdl
