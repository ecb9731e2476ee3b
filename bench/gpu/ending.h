// Ends a GPU benchmark with one line and an exit code: 3 if hardware or a library is missing, 4 if something is wrong.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/status.h"

namespace gpu_bench {

constexpr int kNone = 3;
constexpr int kWrong = 4;
constexpr int kUsage = 64;

// std::exit: the profilers' and sanitizers' handlers run. Other ranks end because this one closes its pipes or
// connections.
[[noreturn]] inline void end(int code, const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
  std::exit(code);
}
inline void stop_unless(const fdl::Status& status, int code = kWrong) {
  if (!status.ok()) end(code, status.text());
}
template <class T>
T stop_unless(fdl::Result<T> result, int code = kWrong) {
  stop_unless(result.status(), code);
  return result.take();
}

}  // namespace gpu_bench
