// These functions count the descriptors that this process has open, and raise its limit.
#pragma once

#include <sys/resource.h>

#include <filesystem>

namespace fdl::test {

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

// A process whose threads are many ranks needs the descriptors of many processes.
inline void raise_descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace fdl::test
