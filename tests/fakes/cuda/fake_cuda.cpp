// This file implements the functions of the fake libcuda for devices, contexts and work, on host memory and threads.
// fake_cuda_memory.cpp has those for memory, and fake_cuda_streams.cpp those for streams, events and captures.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/fakes/cuda/fake_cuda_call.h"

namespace {

// Runs work that touches device memory, on a stream's thread.
template <class Work>
Outcome with_memory(Work work) {
  Machine& machine = Machine::get();
  machine.open_memory();
  const Outcome code = work();
  machine.close_memory();
  return code;
}

bool accessible(const void* memory, std::size_t bytes) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  return machine.within_allocation(memory, bytes);
}

// A copy is checked when it runs, so memory that was freed in between is an illegal address.
std::function<Outcome()> copying(void* target, const void* source, std::size_t bytes) {
  return [=] {
    if (!accessible(target, bytes) || !accessible(source, bytes)) return kIllegalAddress;
    return with_memory([&] {
      std::memmove(target, source, bytes);
      return kSuccess;
    });
  };
}

}  // namespace

// ---- The driver and its devices ----

EXPORT Outcome cuInit(unsigned) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  TRY(machine.enter(__func__));
  if (!machine.initialized) machine.read_environment();
  machine.initialized = true;
  return machine.devices.empty() ? kNoDevice : kSuccess;
}

EXPORT Outcome cuDriverGetVersion(int* version) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  TRY(machine.enter(__func__));
  *version = machine.driver_version;
  return kSuccess;
}

namespace {

struct ErrorText {
  Outcome code;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {kUnsupportedPtxVersion, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {kCaptureMerge, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {kCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {kCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

Outcome error_text(Outcome code, const char* ErrorText::*which, const char** text) {
  for (const ErrorText& error : kErrors) {
    if (error.code != code) continue;
    *text = error.*which;
    return kSuccess;
  }
  *text = nullptr;
  return kInvalidValue;
}

}  // namespace

EXPORT Outcome cuGetErrorName(Outcome code, const char** name) { return error_text(code, &ErrorText::name, name); }
EXPORT Outcome cuGetErrorString(Outcome code, const char** text) { return error_text(code, &ErrorText::text, text); }

EXPORT Outcome cuDeviceGetCount(int* count) {
  ENTER(call);
  *count = static_cast<int>(call.machine.devices.size());
  return kSuccess;
}

EXPORT Outcome cuDeviceGet(DeviceNumber* number, int index) {
  ENTER(call);
  fake::Device* device = nullptr;
  TRY(device_numbered(call, index, &device));
  *number = index;
  return kSuccess;
}

EXPORT Outcome cuDeviceGetName(char* name, int bytes, DeviceNumber number) {
  ENTER(call);
  fake::Device* device = nullptr;
  TRY(device_numbered(call, number, &device));
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU %d", number);
  return device->fallen;
}

EXPORT Outcome cuDeviceGetUuid_v2(Uuid* uuid, DeviceNumber number) {
  ENTER(call);
  fake::Device* device = nullptr;
  TRY(device_numbered(call, number, &device));
  const char* named = std::getenv("FAKE_CUDA_MACHINE");
  std::string machine = named == nullptr ? "" : named;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  if (named == nullptr) std::getline(boot, machine);
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (int half = 0; half < 2; ++half) {
    for (const char c : machine + "/" + std::to_string(number) + "/" + std::to_string(half)) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    }
    std::memcpy(uuid->bytes + 8 * half, &hash, 8);
  }
  return kSuccess;
}

EXPORT Outcome cuDeviceGetAttribute(int* value, int attribute, DeviceNumber number) {
  ENTER(call);
  fake::Device* device = nullptr;
  TRY(device_numbered(call, number, &device));
  const int nodes = call.machine.numa_nodes;
  switch (attribute) {
    case kAttributeMemoryPools:
      *value = call.machine.has_pools;
      return kSuccess;
    case kAttributeComputeMajor:
      *value = call.machine.capability / 10;
      return kSuccess;
    case kAttributeComputeMinor:
      *value = call.machine.capability % 10;
      return kSuccess;
    case kAttributeRegisteredAddress:
      *value = call.machine.registers_at_address;
      return kSuccess;
    case kAttributeHostNumaId:
      if (call.machine.driver_version < 12020) return kInvalidValue;  // the first one with this attribute
      *value = nodes == 0 ? -1 : number % nodes;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

EXPORT Outcome cuDeviceGetPCIBusId(char* id, int bytes, DeviceNumber number) {
  ENTER(call);
  fake::Device* device = nullptr;
  TRY(device_numbered(call, number, &device));
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02X:00.0", 0x3A + number);
  return kSuccess;
}

EXPORT Outcome cuDeviceCanAccessPeer(int* can, DeviceNumber number, DeviceNumber peer) {
  ENTER(call);
  *can = number != peer;
  return kSuccess;
}

// ---- Contexts: each device has its primary context only ----

EXPORT Outcome cuDevicePrimaryCtxRetain(Context* context, DeviceNumber number) {
  ENTER(call);
  fake::Device* device = nullptr;
  TRY(device_numbered(call, number, &device));
  ++device->retained;
  *context = context_of(device);
  return device->fallen;
}

EXPORT Outcome cuDevicePrimaryCtxRelease_v2(DeviceNumber number) {
  ENTER(call);
  fake::Device* device = nullptr;
  TRY(device_numbered(call, number, &device));
  if (device->retained == 0) return kInvalidContext;
  --device->retained;
  return kSuccess;
}

EXPORT Outcome cuCtxPushCurrent_v2(Context context) {
  ENTER(call);
  if (context == nullptr) return kInvalidContext;
  current_contexts.push_back(reinterpret_cast<fake::Device*>(context));
  return kSuccess;
}

EXPORT Outcome cuCtxPopCurrent_v2(Context* context) {
  ENTER(call);
  if (current_contexts.empty()) return kInvalidContext;
  if (context != nullptr) *context = context_of(current_contexts.back());
  current_contexts.pop_back();
  return kSuccess;
}

EXPORT Outcome cuCtxSetCurrent(Context context) {
  ENTER(call);
  if (!current_contexts.empty()) current_contexts.pop_back();
  if (context != nullptr) current_contexts.push_back(reinterpret_cast<fake::Device*>(context));
  return kSuccess;
}

EXPORT Outcome cuCtxGetCurrent(Context* context) {
  ENTER(call);
  *context = context_of(current_device());
  return kSuccess;
}

EXPORT Outcome cuCtxGetDevice(DeviceNumber* number) {
  ENTER(call);
  if (current_device() == nullptr) return kInvalidContext;
  *number = current_device()->index;
  return kSuccess;
}

EXPORT Outcome cuCtxEnablePeerAccess(Context peer, unsigned) {
  ENTER(call);
  TRY(call.context());
  const auto* device = reinterpret_cast<fake::Device*>(peer);
  return current_device()->peers.insert(device->index).second ? kSuccess : kPeerAccessAlreadyEnabled;
}

EXPORT Outcome cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER(call);
  std::swap(*mode, capture_mode);
  return kSuccess;
}

EXPORT Outcome cuCtxSynchronize(void) {
  ENTER(call);
  TRY(call.context());
  TRY(call.unsafe());
  call.machine.wait_idle(call.lock, *current_device(), __func__);
  return current_device()->fallen;
}

// ---- Work ----

EXPORT Outcome cuLaunchHostFunc(void* handle, HostFunction function, void* argument) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find_for_work(handle, &stream));
  return call.machine.queue(stream, [=] {
    in_host_function = true;
    function(argument);
    in_host_function = false;
    return kSuccess;
  });
}

EXPORT Outcome cuMemcpyAsync(Pointer target, Pointer source, std::size_t bytes, void* handle) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find_for_work(handle, &stream));
  return call.machine.queue(stream, copying(address(target), address(source), bytes));
}

EXPORT Outcome cuMemsetD8Async(Pointer target, unsigned char value, std::size_t bytes, void* handle) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find_for_work(handle, &stream));
  return call.machine.queue(stream, [=] {
    if (!accessible(address(target), bytes)) return kIllegalAddress;
    return with_memory([&] {
      std::memset(address(target), value, bytes);
      return kSuccess;
    });
  });
}

// ---- Modules: images are checked, and the kernels are built in ----

// As the first load of a module may in the driver, it waits for the device.
EXPORT Outcome cuModuleLoadData(Module* module, const void* image) {
  ENTER(call);
  TRY(call.context());
  TRY(call.unsafe());
  call.machine.wait_idle(call.lock, *current_device(), __func__);
  if (call.machine.refused_module != 0) return call.machine.refused_module;
  if (image == nullptr) return kInvalidImage;
  TRY(check_image(image, call.machine.capability, call.machine.driver_version));
  *module = reinterpret_cast<Module>(const_cast<void*>(image));
  return kSuccess;
}

EXPORT Outcome cuModuleUnload(Module) {
  ENTER(call);
  return kSuccess;
}

EXPORT Outcome cuModuleGetFunction(Function* function, Module, const char* name) {
  ENTER(call);
  for (const Kernel& kernel : kernels()) {
    if (std::strcmp(kernel.name, name) != 0) continue;
    *function = reinterpret_cast<Function>(const_cast<Kernel*>(&kernel));
    return kSuccess;
  }
  return kNotFound;
}

EXPORT Outcome cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned, void* handle, void** parameters, void**) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find_for_work(handle, &stream));
  if (grid_x == 0 || grid_y * grid_z != 1 || block_x == 0 || block_x > 1024 || block_y * block_z != 1)
    return kInvalidValue;
  const Kernel* const kernel = reinterpret_cast<const Kernel*>(function);
  const auto* first = static_cast<const std::byte*>(parameters[0]);
  const std::vector<std::byte> copy(first, first + kernel->parameter_bytes);
  return call.machine.queue(stream, [=] {
    return with_memory([&] {
      alignas(64) static thread_local std::byte aligned[4096];
      std::memcpy(aligned, copy.data(), copy.size());
      kernel->run(aligned, grid_x, block_x);
      return kSuccess;
    });
  });
}
