// This header declares the functions and numbers of NVIDIA's CUDA driver that farandole uses: facts of its ABI, in our
// own words. tests/unit/cuda/cuda_abi_test.cpp compares them with the driver's header where a toolkit is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fdl::cuda {

using Outcome = int;  // CUresult: the result of a call
// Contexts, modules and functions are opaque handles of the driver.
using DeviceNumber = int;
using Pointer = unsigned long long;
using Context = struct ContextOfDriver*;
using Module = struct ModuleOfDriver*;
using Function = struct FunctionOfDriver*;
using HostFunction = void (*)(void*);

// ---- Results. The driver describes all of them (cuGetErrorName); these are the ones that the code distinguishes. ----
inline constexpr Outcome kSuccess = 0;
inline constexpr Outcome kInvalidValue = 1;
inline constexpr Outcome kOutOfMemory = 2;
inline constexpr Outcome kNotInitialized = 3;
inline constexpr Outcome kDeinitialized = 4;
inline constexpr Outcome kStubLibrary = 34;
inline constexpr Outcome kNoDevice = 100;
inline constexpr Outcome kInvalidDevice = 101;
inline constexpr Outcome kInvalidImage = 200;
inline constexpr Outcome kInvalidContext = 201;
inline constexpr Outcome kNoBinaryForGpu = 209;
inline constexpr Outcome kEccUncorrectable = 214;
inline constexpr Outcome kNvlinkUncorrectable = 220;
inline constexpr Outcome kJitCompilerNotFound = 221;
inline constexpr Outcome kUnsupportedPtxVersion = 222;
inline constexpr Outcome kInvalidHandle = 400;
inline constexpr Outcome kNotFound = 500;
inline constexpr Outcome kNotReady = 600;
inline constexpr Outcome kIllegalAddress = 700;
inline constexpr Outcome kLaunchTimeout = 702;
inline constexpr Outcome kPeerAccessAlreadyEnabled = 704;
inline constexpr Outcome kContextIsDestroyed = 709;
inline constexpr Outcome kAssert = 710;
inline constexpr Outcome kHardwareStackError = 714;
inline constexpr Outcome kLaunchFailed = 719;
inline constexpr Outcome kNotPermitted = 800;
inline constexpr Outcome kNotSupported = 801;
inline constexpr Outcome kSystemDriverMismatch = 803;
inline constexpr Outcome kCaptureUnsupported = 900;
inline constexpr Outcome kCaptureInvalidated = 901;
inline constexpr Outcome kCaptureMerge = 902;
inline constexpr Outcome kCaptureUnmatched = 903;
inline constexpr Outcome kCaptureUnjoined = 904;
inline constexpr Outcome kCaptureIsolation = 905;
inline constexpr Outcome kCaptureImplicit = 906;
inline constexpr Outcome kCapturedEvent = 907;
inline constexpr Outcome kUnknown = 999;

// ---- Flags and attributes ----
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr int kCaptureNone = 0;
inline constexpr int kCaptureActive = 1;
inline constexpr int kCaptureInvalid = 2;
inline constexpr int kCaptureModeGlobal = 0;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr unsigned kMemoryHost = 1;
inline constexpr unsigned kMemoryDevice = 2;
inline constexpr int kAttributeComputeMajor = 75;
inline constexpr int kAttributeComputeMinor = 76;
inline constexpr int kAttributeRegisteredAddress = 91;
inline constexpr int kAttributeMemoryPools = 115;
inline constexpr int kAttributeHostNumaId = 134;

// CUuuid.
struct Uuid {
  unsigned char bytes[16];
};

// CUipcMemHandle: opens memory of the device in another process.
struct IpcHandle {
  char bytes[64];
};

}  // namespace fdl::cuda

// Name as the library exports it, and its parameters. Streams and events are void*, as in contract/device.h.
// clang-format off
#define FDL_CUDA_FUNCTIONS(ROW)                                                                                        \
  ROW(cuInit,                            (unsigned flags))                                                             \
  ROW(cuDriverGetVersion,                (int* version))                                                               \
  ROW(cuGetErrorName,                    (Outcome code, const char** name))                                               \
  ROW(cuGetErrorString,                  (Outcome code, const char** text))                                               \
  ROW(cuDeviceGetCount,                  (int* count))                                                                 \
  ROW(cuDeviceGet,                       (DeviceNumber* device, int index))                                            \
  ROW(cuDeviceGetName,                   (char* name, int bytes, DeviceNumber device))                                 \
  ROW(cuDeviceGetUuid_v2,                (Uuid* uuid, DeviceNumber device))                                            \
  ROW(cuDeviceGetAttribute,              (int* value, int attribute, DeviceNumber device))                             \
  ROW(cuDeviceGetPCIBusId,               (char* id, int bytes, DeviceNumber device))                                   \
  ROW(cuDeviceCanAccessPeer,             (int* can, DeviceNumber device, DeviceNumber peer))                           \
  ROW(cuDevicePrimaryCtxRetain,          (Context* context, DeviceNumber device))                                      \
  ROW(cuDevicePrimaryCtxRelease_v2,      (DeviceNumber device))                                                        \
  ROW(cuCtxPushCurrent_v2,               (Context context))                                                            \
  ROW(cuCtxPopCurrent_v2,                (Context* context))                                                           \
  ROW(cuCtxGetCurrent,                   (Context* context))                                                           \
  ROW(cuCtxSetCurrent,                   (Context context))                                                            \
  ROW(cuCtxEnablePeerAccess,             (Context peer, unsigned flags))                                               \
  ROW(cuThreadExchangeStreamCaptureMode, (int* mode))                                                                  \
  ROW(cuMemAlloc_v2,                     (Pointer* memory, std::size_t bytes))                                         \
  ROW(cuMemFree_v2,                      (Pointer memory))                                                             \
  ROW(cuMemAllocAsync,                   (Pointer* memory, std::size_t bytes, void* stream))                           \
  ROW(cuMemFreeAsync,                    (Pointer memory, void* stream))                                               \
  ROW(cuMemGetInfo_v2,                   (std::size_t* free, std::size_t* total))                                      \
  ROW(cuMemHostAlloc,                    (void** memory, std::size_t bytes, unsigned flags))                           \
  ROW(cuMemFreeHost,                     (void* memory))                                                               \
  ROW(cuMemHostRegister_v2,              (void* memory, std::size_t bytes, unsigned flags))                            \
  ROW(cuMemHostUnregister,               (void* memory))                                                               \
  ROW(cuIpcGetMemHandle,                 (IpcHandle* handle, Pointer memory))                                          \
  ROW(cuIpcOpenMemHandle_v2,             (Pointer* memory, IpcHandle handle, unsigned flags))                          \
  ROW(cuIpcCloseMemHandle,               (Pointer memory))                                                             \
  ROW(cuPointerGetAttribute,             (void* value, int attribute, Pointer pointer))                                \
  ROW(cuStreamCreateWithPriority,        (void** stream, unsigned flags, int priority))                                \
  ROW(cuCtxGetStreamPriorityRange,       (int* least, int* greatest))                                                  \
  ROW(cuStreamDestroy_v2,                (void* stream))                                                               \
  ROW(cuStreamIsCapturing,               (void* stream, int* status))                                                  \
  ROW(cuStreamWaitEvent,                 (void* stream, void* event, unsigned flags))                                  \
  ROW(cuStreamSynchronize,               (void* stream))                                                               \
  ROW(cuEventCreate,                     (void** event, unsigned flags))                                               \
  ROW(cuEventRecord,                     (void* event, void* stream))                                                  \
  ROW(cuEventQuery,                      (void* event))                                                                \
  ROW(cuEventDestroy_v2,                 (void* event))                                                                \
  ROW(cuLaunchHostFunc,                  (void* stream, HostFunction function, void* argument))                        \
  ROW(cuMemcpyAsync,                     (Pointer target, Pointer source, std::size_t bytes, void* stream))            \
  ROW(cuMemsetD8Async,                   (Pointer target, unsigned char value, std::size_t bytes, void* stream))       \
  ROW(cuModuleLoadData,                  (Module* module, const void* image))                                          \
  ROW(cuModuleGetFunction,               (Function* function, Module module, const char* name))                        \
  ROW(cuModuleUnload,                    (Module module))                                                              \
  ROW(cuLaunchKernel,                    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,        \
                                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, \
                                          void* stream, void** parameters, void** extra))

// Functions of newer drivers, which are null where the driver lacks them: from CUDA 12.0 on.
#define FDL_NEWER_CUDA_FUNCTIONS(ROW)                                                                                  \
  ROW(cuStreamGetId,                     (void* stream, unsigned long long* id))
// clang-format on
