// Turns an fdl_result into the Python exception of its class, with the whole story of fdl_last_error.
#pragma once

#include <farandole/farandole.h>

#include <string>

namespace farandole_python {

// What fdl_last_error told, kept for another thread.
struct Failure {
  fdl_result code = FDL_OK;
  int culprit_rank = -1;
  std::string text, culprit_host, operation, phase, group;

  static Failure last();
  static Failure of(fdl_result code, std::string text);
};

// All throw pybind11::error_already_set; the GIL must be held.
[[noreturn]] void raise_last_error();
[[noreturn]] void raise_error(fdl_result code, const std::string& text);
[[noreturn]] void raise_failure(const Failure& failure);

inline void check(fdl_result result) {
  if (result != FDL_OK) raise_last_error();
}

}  // namespace farandole_python
