// Converts an fdl_result to the Python exception of its class, with all fields of fdl_last_error.
#pragma once

#include <farandole/farandole.h>

#include <cstdint>
#include <string>

#include "failure.h"

namespace farandole_python {

// How long a wait on the main thread may delay Python's signal handlers.
inline constexpr int64_t kBetweenSignalChecksNs = 500'000'000;

// All throw pybind11::error_already_set; the GIL must be held.
[[noreturn]] void raise_last_error();
[[noreturn]] void raise_error(fdl_result code, const std::string& text);
[[noreturn]] void raise_failure(const Failure& failure);

inline void check(fdl_result result) {
  if (result != FDL_OK) raise_last_error();
}

// The same after a call that may have run signal handlers. An exception of a handler comes first.
void check_interrupted(fdl_result result);

}  // namespace farandole_python
