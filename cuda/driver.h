// Driver holds the functions of NVIDIA's CUDA driver. It is opened when a device is first requested; farandole builds
// and starts without it.
#pragma once

#include <string>

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fdl::cuda {

struct Driver {
  // Opens the driver in this library, or in libcuda.so.1 if the name is empty. Each library is opened once: later calls
  // return the first result, also a failure. It is never closed. Any thread may call.
  static Result<const Driver*> open(const std::string& library);

  // "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered"
  std::string describe(Outcome outcome) const;

  std::string library;
  int version = 0;  // the newest CUDA version that it supports: 12040 is 12.4

#define ROW(name, parameters) Outcome(*name) parameters = nullptr;
  FDL_CUDA_FUNCTIONS(ROW)
  FDL_NEWER_CUDA_FUNCTIONS(ROW)
#undef ROW
};

// 12040 is "12.4".
std::string version_text(int version);

}  // namespace fdl::cuda
