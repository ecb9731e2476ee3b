// Failure: a copy of fdl_last_error, for use in another thread.
#pragma once

#include <farandole/farandole.h>

#include <string>
#include <utility>

namespace farandole_python {

struct Failure {
  fdl_result code = FDL_OK;
  int culprit_rank = -1;
  std::string text, culprit_host, operation, phase, group;

  static Failure last() {
    const fdl_error& error = *fdl_last_error();
    return {error.code, error.culprit_rank, error.text, error.culprit_host, error.operation, error.phase, error.group};
  }
  static Failure of(fdl_result code, std::string text) {
    Failure failure;
    failure.code = code;
    failure.text = std::move(text);
    return failure;
  }
};

}  // namespace farandole_python
