// NcclLibrary: one libnccl in this process: its functions, its version and what that version can do.
//
// Opened at run time and never closed, for others in the process may use it too. Any thread may call.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "transports/nccl/nccl_abi.h"

// What versions differ in, as far as we use it. From which version on, and the function that must be there besides, if
// any.
// clang-format off
#define FDL_NCCL_FEATURES(ROW)                                                                                         \
  ROW(own_memory,       21900, "ncclMemAlloc",             "memory as it likes it best")                               \
  ROW(registration,     21900, "ncclCommRegister",         "buffers that are used in place")                           \
  ROW(symmetric,        22700, "ncclCommWindowRegister",   "windows that all ranks map alike")                         \
  ROW(alltoall,         22800, "ncclAlltoAll",             "alltoall, gather and scatter as one call")                 \
  ROW(revoke,           22807, "ncclCommRevoke",           "ending what is in flight without waiting")                 \
  ROW(shared_devices,   23000, "",                         "several ranks on one GPU, if asked for")
// clang-format on

namespace fdl {

struct NcclFeatures {
#define ROW(name, since, symbol, meaning) bool name = false;
  FDL_NCCL_FEATURES(ROW)
#undef ROW
};

// Below this nothing is run. 2.18 (2023) is the first with everything that a group needs: a start that can be given up,
// split, and a config whose layout all later versions accept.
inline constexpr int kNcclMinimum = 21800;

// "2.30.7" from NCCL's number. Pure.
std::string nccl_version_text(int version);
// Pure: what a library of this version has, whose symbols are these.
NcclFeatures nccl_features(int version, const std::function<bool(const char*)>& has_symbol);
// "own_memory, registration, ...": the names of what is there.
std::string describe(const NcclFeatures& features);

class NcclLibrary {
 public:
  // `path` if it is not empty; else the one that this process has loaded already, the Python package nvidia-nccl's (in
  // nvidia/nccl/lib beside one of the folders above this library), the system's. UNSUPPORTED says what was tried.
  static Result<std::shared_ptr<const NcclLibrary>> open(const std::string& path);

  int version() const { return version_; }
  const nccl::Functions& functions() const { return functions_; }
  const NcclFeatures& features() const { return features_; }
  const std::string& file() const { return file_; }
  // What went wrong, in NCCL's own words as far as it has any: "unhandled system error (Call to bind failed)".
  std::string words_for(nccl::Outcome outcome, nccl::Comm comm) const;
  // "NCCL 2.30.7 (/usr/lib/libnccl.so.2, already in this process): own_memory, registration, ..."
  std::string description() const;

 private:
  int version_ = 0;
  NcclFeatures features_;
  std::string file_;
  std::string origin_;
  nccl::Functions functions_;
};

}  // namespace fdl
