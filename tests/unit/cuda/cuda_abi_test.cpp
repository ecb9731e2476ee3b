// These tests compare our declarations of the CUDA driver with those of its header, where a toolkit is installed.
#include <cuda.h>
#include <gtest/gtest.h>

#include <utility>

#include "cuda/driver_api.h"
#include "tests/support/same_abi.h"

namespace fdl::test {
namespace {

using namespace cuda;

#define FDL_TEXT(name) #name
#define FDL_TEXT_OF(name) FDL_TEXT(name)

// In a header, a name that was later given to a newer function is a macro, whose expansion differs from the name. A
// versioned name that is not the header's newest is not declared, and then this does not compile.
TEST(CudaAbi, HasEachFunctionAsTheHeaderDeclaresItUnderTheNameThatIsLookedUp) {
  const auto compare = [](const char* looked_up, const char* in_header, bool same) {
    EXPECT_STREQ(looked_up, in_header) << "the header gives this name to another function";
    EXPECT_TRUE(same) << looked_up << " is declared otherwise by cuda.h " << CUDA_VERSION;
  };
#define ROW(name, parameters) \
  compare(#name, FDL_TEXT_OF(name), SameFunction<Outcome parameters, std::remove_pointer_t<decltype(&::name)>>::value);
  FDL_CUDA_FUNCTIONS(ROW)
#if CUDA_VERSION >= 12000
  FDL_NEWER_CUDA_FUNCTIONS(ROW)
#endif
#undef ROW
}

// clang-format off
#define NUMBERS(ROW)                                                       \
  ROW(kSuccess,                  CUDA_SUCCESS)                             \
  ROW(kInvalidValue,             CUDA_ERROR_INVALID_VALUE)                 \
  ROW(kOutOfMemory,              CUDA_ERROR_OUT_OF_MEMORY)                 \
  ROW(kNotInitialized,           CUDA_ERROR_NOT_INITIALIZED)               \
  ROW(kDeinitialized,            CUDA_ERROR_DEINITIALIZED)                 \
  ROW(kStubLibrary,              CUDA_ERROR_STUB_LIBRARY)                  \
  ROW(kNoDevice,                 CUDA_ERROR_NO_DEVICE)                     \
  ROW(kInvalidDevice,            CUDA_ERROR_INVALID_DEVICE)                \
  ROW(kInvalidImage,             CUDA_ERROR_INVALID_IMAGE)                 \
  ROW(kInvalidContext,           CUDA_ERROR_INVALID_CONTEXT)               \
  ROW(kNoBinaryForGpu,           CUDA_ERROR_NO_BINARY_FOR_GPU)             \
  ROW(kEccUncorrectable,         CUDA_ERROR_ECC_UNCORRECTABLE)             \
  ROW(kNvlinkUncorrectable,      CUDA_ERROR_NVLINK_UNCORRECTABLE)          \
  ROW(kJitCompilerNotFound,      CUDA_ERROR_JIT_COMPILER_NOT_FOUND)        \
  ROW(kUnsupportedPtxVersion,    CUDA_ERROR_UNSUPPORTED_PTX_VERSION)       \
  ROW(kInvalidHandle,            CUDA_ERROR_INVALID_HANDLE)                \
  ROW(kNotFound,                 CUDA_ERROR_NOT_FOUND)                     \
  ROW(kNotReady,                 CUDA_ERROR_NOT_READY)                     \
  ROW(kIllegalAddress,           CUDA_ERROR_ILLEGAL_ADDRESS)               \
  ROW(kLaunchTimeout,            CUDA_ERROR_LAUNCH_TIMEOUT)                \
  ROW(kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)   \
  ROW(kContextIsDestroyed,       CUDA_ERROR_CONTEXT_IS_DESTROYED)          \
  ROW(kAssert,                   CUDA_ERROR_ASSERT)                        \
  ROW(kHardwareStackError,       CUDA_ERROR_HARDWARE_STACK_ERROR)          \
  ROW(kLaunchFailed,             CUDA_ERROR_LAUNCH_FAILED)                 \
  ROW(kNotPermitted,             CUDA_ERROR_NOT_PERMITTED)                 \
  ROW(kNotSupported,             CUDA_ERROR_NOT_SUPPORTED)                 \
  ROW(kSystemDriverMismatch,     CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)        \
  ROW(kCaptureUnsupported,       CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)    \
  ROW(kCaptureInvalidated,       CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)    \
  ROW(kCaptureMerge,             CUDA_ERROR_STREAM_CAPTURE_MERGE)          \
  ROW(kCaptureUnmatched,         CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)       \
  ROW(kCaptureUnjoined,          CUDA_ERROR_STREAM_CAPTURE_UNJOINED)        \
  ROW(kCaptureIsolation,         CUDA_ERROR_STREAM_CAPTURE_ISOLATION)      \
  ROW(kCaptureImplicit,          CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)       \
  ROW(kCapturedEvent,            CUDA_ERROR_CAPTURED_EVENT)                \
  ROW(kUnknown,                  CUDA_ERROR_UNKNOWN)                       \
  ROW(kStreamNonBlocking,        CU_STREAM_NON_BLOCKING)                   \
  ROW(kEventDisableTiming,       CU_EVENT_DISABLE_TIMING)                  \
  ROW(kHostAllocPortable,        CU_MEMHOSTALLOC_PORTABLE)                 \
  ROW(kIpcLazyEnablePeerAccess,  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)       \
  ROW(kHostRegisterPortable,     CU_MEMHOSTREGISTER_PORTABLE)              \
  ROW(kCaptureNone,              CU_STREAM_CAPTURE_STATUS_NONE)            \
  ROW(kCaptureActive,            CU_STREAM_CAPTURE_STATUS_ACTIVE)          \
  ROW(kCaptureInvalid,           CU_STREAM_CAPTURE_STATUS_INVALIDATED)     \
  ROW(kCaptureModeGlobal,        CU_STREAM_CAPTURE_MODE_GLOBAL)            \
  ROW(kCaptureModeRelaxed,       CU_STREAM_CAPTURE_MODE_RELAXED)           \
  ROW(kPointerMemoryType,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE)         \
  ROW(kPointerDeviceOrdinal,     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)      \
  ROW(kMemoryHost,               CU_MEMORYTYPE_HOST)                       \
  ROW(kMemoryDevice,             CU_MEMORYTYPE_DEVICE)                     \
  ROW(kAttributeComputeMajor,    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) \
  ROW(kAttributeComputeMinor,    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) \
  ROW(kAttributeRegisteredAddress, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) \
  ROW(kAttributeMemoryPools,     CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) \
  ROW(kAttributeHostNumaId,      CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
// clang-format on

TEST(CudaAbi, HasTheNumbersOfTheHeader) {
  std::set<std::string> compared;
#define ROW(ours, theirs)                                                 \
  EXPECT_EQ(static_cast<long>(ours), static_cast<long>(theirs)) << #ours; \
  compared.insert(#ours);
  NUMBERS(ROW)
#undef ROW
  EXPECT_EQ(compared, constants_of(FDL_SOURCE_DIR "/cuda/driver_api.h")) << "each number has its row here";
}

// Calls treats the whole range of numbers between the two as fatal.
TEST(CudaAbi, HasOnlyFatalOutcomesInTheFatalRange) {
  for (const CUresult fatal :
       {CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC, CUDA_ERROR_LAUNCH_FAILED}) {
    EXPECT_TRUE(fatal >= kHardwareStackError && fatal <= kLaunchFailed) << fatal;
  }
  EXPECT_EQ(kLaunchFailed - kHardwareStackError, 5);
}

TEST(CudaAbi, HasTypesOfTheSizesOfTheHeader) {
  EXPECT_EQ(sizeof(Uuid), sizeof(CUuuid));
  EXPECT_EQ(alignof(Uuid), alignof(CUuuid));
  EXPECT_EQ(sizeof(IpcHandle), sizeof(CUipcMemHandle));
  EXPECT_EQ(alignof(IpcHandle), alignof(CUipcMemHandle));
  EXPECT_TRUE((std::is_same_v<Pointer, CUdeviceptr>));
  EXPECT_TRUE((std::is_same_v<DeviceNumber, CUdevice>));
  EXPECT_EQ(sizeof(Outcome), sizeof(CUresult));
}

}  // namespace
}  // namespace fdl::test
