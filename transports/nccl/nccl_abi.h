// This header declares the part of NCCL's binary interface that farandole uses: facts of its ABI that all versions
// from 2.18 on share.
//
// NCCL is opened at run time, so the build needs no header of it. tests/unit/nccl/nccl_abi_test.cpp compares these
// declarations with NCCL's own header where that is found.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace fdl::nccl {

using Comm = struct OpaqueComm*;
using Window = struct OpaqueWindow*;
using CudaStream = void*;

struct UniqueId {
  char internal[128];
};

enum class Outcome : int {
  success = 0,
  cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
  timeout = 8,
};
// Whether a call has not failed; a nonblocking one may still be in progress.
constexpr bool is_accepted(Outcome outcome) { return outcome == Outcome::success || outcome == Outcome::in_progress; }

enum class Type : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

// Larger numbers are operations that a communicator has created for itself.
enum class RedOp : int { sum = 0, product = 1, max = 2, min = 3, average = 4 };

inline constexpr int kScalarOnHost = 1;  // the scalar is read before the call returns
inline constexpr int kUndefined = INT_MIN;
inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr int kWindowSymmetric = 1;
inline constexpr std::size_t kWindowAlignment = 4096;

// ncclConfig_t of version 2.18. Later versions append members and accept this shorter struct, which states its size and
// version. The padding is the member trafficClass in later versions, so it is set to undefined.
struct ConfigOf218 {
  std::size_t size = sizeof(ConfigOf218);
  unsigned magic = kConfigMagic;
  unsigned version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int padding = kUndefined;
};
static_assert(sizeof(ConfigOf218) == 48);

}  // namespace fdl::nccl

// Each row: name without the prefix nccl, first version with it (0: all), result and arguments. A function that the
// version or the library lacks is a null pointer.
// clang-format off
#define FDL_NCCL_FUNCTIONS(ROW)                                                                                        \
  ROW(GetVersion,             0,     Outcome, (int*))                                                                  \
  ROW(GetErrorString,         0,     const char*, (Outcome))                                                           \
  ROW(GetLastError,           0,     const char*, (Comm))                                                              \
  ROW(GetUniqueId,            0,     Outcome, (UniqueId*))                                                             \
  ROW(CommInitRankConfig,     0,     Outcome, (Comm*, int, UniqueId, int, ConfigOf218*))                               \
  ROW(CommSplit,              0,     Outcome, (Comm, int, int, Comm*, ConfigOf218*))                                   \
  ROW(CommFinalize,           0,     Outcome, (Comm))                                                                  \
  ROW(CommDestroy,            0,     Outcome, (Comm))                                                                  \
  ROW(CommAbort,              0,     Outcome, (Comm))                                                                  \
  ROW(CommGetAsyncError,      0,     Outcome, (Comm, Outcome*))                                                        \
  ROW(GroupStart,             0,     Outcome, ())                                                                      \
  ROW(GroupEnd,               0,     Outcome, ())                                                                      \
  ROW(AllReduce,              0,     Outcome, (const void*, void*, std::size_t, Type, RedOp, Comm, CudaStream))        \
  ROW(Reduce,                 0,     Outcome, (const void*, void*, std::size_t, Type, RedOp, int, Comm, CudaStream))   \
  ROW(Broadcast,              0,     Outcome, (const void*, void*, std::size_t, Type, int, Comm, CudaStream))          \
  ROW(AllGather,              0,     Outcome, (const void*, void*, std::size_t, Type, Comm, CudaStream))               \
  ROW(ReduceScatter,          0,     Outcome, (const void*, void*, std::size_t, Type, RedOp, Comm, CudaStream))        \
  ROW(Send,                   0,     Outcome, (const void*, std::size_t, Type, int, Comm, CudaStream))                 \
  ROW(Recv,                   0,     Outcome, (void*, std::size_t, Type, int, Comm, CudaStream))                       \
  ROW(RedOpCreatePreMulSum,   0,     Outcome, (RedOp*, void*, Type, int, Comm))                                        \
  ROW(RedOpDestroy,           0,     Outcome, (RedOp, Comm))                                                           \
  ROW(MemAlloc,               21900, Outcome, (void**, std::size_t))                                                   \
  ROW(MemFree,                21900, Outcome, (void*))                                                                 \
  ROW(CommRegister,           21900, Outcome, (Comm, void*, std::size_t, void**))                                      \
  ROW(CommDeregister,         21900, Outcome, (Comm, void*))                                                           \
  ROW(CommWindowRegister,     22700, Outcome, (Comm, void*, std::size_t, Window*, int))                                \
  ROW(CommWindowDeregister,   22700, Outcome, (Comm, Window))                                                          \
  ROW(AlltoAll,               22800, Outcome, (const void*, void*, std::size_t, Type, Comm, CudaStream))               \
  ROW(Gather,                 22800, Outcome, (const void*, void*, std::size_t, Type, int, Comm, CudaStream))          \
  ROW(Scatter,                22800, Outcome, (const void*, void*, std::size_t, Type, int, Comm, CudaStream))          \
  ROW(CommRevoke,             22807, Outcome, (Comm, int))
// clang-format on

namespace fdl::nccl {

struct Functions {
#define ROW(name, since, result, arguments) result(*name) arguments = nullptr;
  FDL_NCCL_FUNCTIONS(ROW)
#undef ROW
};

}  // namespace fdl::nccl
