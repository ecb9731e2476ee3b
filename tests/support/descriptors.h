// Descriptors: how many this process has open, and how many it may open.
#pragma once

#include <sys/resource.h>

#include <filesystem>

namespace fdl::test {

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

// Many ranks as threads of one process hold the descriptors of many processes.
inline void raise_descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace fdl::test
