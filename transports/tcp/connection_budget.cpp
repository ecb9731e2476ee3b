// connection_limit() reads the limit of descriptors and counts those that are open.
#include "transports/tcp/connection_budget.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace fdl {
namespace {

int open_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int count = -3;  // the folder itself, "." and ".."
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

}  // namespace

int connection_limit(int configured) {
  if (configured > 0) return configured;
  constexpr int kUnlimited = std::numeric_limits<int>::max() / 2;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > kUnlimited) return kUnlimited;
  const int all = static_cast<int>(limit.rlim_cur);
  const int left_for_program = std::clamp(all / 8, 8, 64);
  return std::max(all - open_descriptors() - left_for_program, kLeastConnections);
}

}  // namespace fdl
