// Driver: NVIDIA's CUDA driver, opened when a device is first asked for; nothing here needs it to build or to start.
#pragma once

#include <string>

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fdl::cuda {

struct Driver {
  // The driver in this library, or in libcuda.so.1 where the name is empty. Opened once: whoever asks later gets what
  // the first one got, the failure too. Never closed. Any thread.
  static Result<const Driver*> open(const std::string& library);

  // "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered"
  std::string describe(Outcome outcome) const;

  std::string library;
  int version = 0;  // the newest CUDA that it serves: 12040 is 12.4

#define ROW(name, parameters) Outcome(*name) parameters = nullptr;
  FDL_CUDA_FUNCTIONS(ROW)
#undef ROW
};

// 12040 is "12.4".
std::string version_text(int version);

}  // namespace fdl::cuda
