// NcclLibrary is one libnccl in this process: its functions, its version and what that version can do.
//
// It is opened at run time and never closed, because other code in the process may use it, too. Any thread may call.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "transports/nccl/nccl_abi.h"

// Features that only some versions have: name, first version with it, and a function that the library must also export,
// if any.
// clang-format off
#define FDL_NCCL_FEATURES(ROW)                                                                                         \
  ROW(own_memory,       21900, "ncclMemAlloc",             "memory that NCCL allocates itself")                        \
  ROW(registration,     21900, "ncclCommRegister",         "registered buffers, used in place")                        \
  ROW(symmetric,        22700, "ncclCommWindowRegister",   "windows that all ranks map alike")                         \
  ROW(alltoall,         22800, "ncclAlltoAll",             "alltoall, gather and scatter as one call")                 \
  ROW(revoke,           22807, "ncclCommRevoke",           "ending what is in flight without waiting")                 \
  ROW(shared_devices,   23000, "",                         "several ranks on one GPU, if allowed")
// clang-format on

namespace fdl {

struct NcclFeatures {
#define ROW(name, since, symbol, meaning) bool name = false;
  FDL_NCCL_FEATURES(ROW)
#undef ROW
};

// The oldest supported version. 2.18 (2023) is the first with all that a group needs: nonblocking initialization,
// ncclCommSplit, and a config whose layout all later versions accept.
inline constexpr int kNcclMinimum = 21800;

// "2.30.7" from NCCL's version number. Pure.
std::string nccl_version_text(int version);
// The features of a library with this version and these symbols. Pure.
NcclFeatures nccl_features(int version, const std::function<bool(const char*)>& has_symbol);
// The names of the available features: "own_memory, registration, ..."
std::string describe(const NcclFeatures& features);

class NcclLibrary {
 public:
  // Opens `path` if it is not empty. Otherwise takes the libnccl that this process has already loaded, else that of the
  // Python package nvidia-nccl (nvidia/nccl/lib beside one of the folders above this library), else the system's.
  // UNSUPPORTED lists what was tried.
  static Result<std::shared_ptr<const NcclLibrary>> open(const std::string& path);

  int version() const { return version_; }
  const nccl::Functions& functions() const { return functions_; }
  const NcclFeatures& features() const { return features_; }
  const std::string& file() const { return file_; }
  // NCCL's own description of an error: "unhandled system error (Call to bind failed)".
  std::string text_for(nccl::Outcome outcome, nccl::Comm comm) const;
  // "NCCL 2.30.7 (/usr/lib/libnccl.so.2, already in this process): own_memory, registration, ..."
  std::string description() const;

 private:
  int version_ = 0;
  NcclFeatures features_;
  std::string file_;    // path of the library
  std::string origin_;  // how it was found, for description()
  nccl::Functions functions_;
};

}  // namespace fdl
