// This file implements the fake libcuda's memory, of devices and pinned memory of the host.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tests/fakes/cuda/fake_cuda_call.h"

EXPORT Outcome cuMemAlloc_v2(Pointer* memory, std::size_t bytes) {
  ENTER(call);
  TRY(call.context());
  TRY(call.unsafe());
  if (call.machine.allocations_wait) call.machine.wait_idle(call.lock, *current_device(), __func__);
  void* start = nullptr;
  TRY(call.machine.allocate(*current_device(), bytes, &start));
  *memory = reinterpret_cast<std::uintptr_t>(start);
  return kSuccess;
}

EXPORT Outcome cuMemFree_v2(Pointer memory) {
  ENTER(call);
  TRY(call.unsafe());
  return call.machine.free_memory(call.lock, address(memory), __func__);
}

// Memory of a pool is there at once if the stream is idle, and is freed in the stream's order, without a wait.
EXPORT Outcome cuMemAllocAsync(Pointer* memory, std::size_t bytes, void* handle) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find_for_work(handle, &stream));
  if (!call.machine.has_pools) return kNotSupported;
  if (stream->capture != nullptr || !stream->queue.empty() || stream->running) return kCaptureUnsupported;  // not faked
  void* start = nullptr;
  TRY(call.machine.allocate(*stream->device, bytes, &start));
  stream->device->pooled.insert(static_cast<std::byte*>(start));
  *memory = reinterpret_cast<std::uintptr_t>(start);
  return kSuccess;
}

EXPORT Outcome cuMemFreeAsync(Pointer memory, void* handle) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find_for_work(handle, &stream));
  if (!call.machine.has_pools) return kNotSupported;
  if (stream->capture == nullptr && stream->queue.empty() && !stream->running) {
    return call.machine.drop_memory(address(memory));
  }
  return call.machine.queue(stream, [=] {
    const std::lock_guard lock(Machine::get().mutex);
    return Machine::get().drop_memory(address(memory));
  });
}

EXPORT Outcome cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ENTER(call);
  TRY(call.context());
  *total = call.machine.memory_bytes;
  *free = *total - std::min(*total, current_device()->used);
  return kSuccess;
}

// As an allocation of pinned memory may in the driver, it waits for the device.
EXPORT Outcome cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  ENTER(call);
  TRY(call.context());
  TRY(call.unsafe());
  call.machine.wait_idle(call.lock, *current_device(), __func__);
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return kOutOfMemory;
  call.machine.pinned[static_cast<std::byte*>(start)] = bytes;
  call.machine.pinned_bytes += bytes;
  *memory = start;
  return kSuccess;
}

// The caller's own pages, which the driver pins. Unlike cuMemHostAlloc it touches them, so that they lie where the
// caller has bound them.
EXPORT Outcome cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned) {
  ENTER(call);
  TRY(call.context());
  TRY(call.unsafe());
  auto* const start = static_cast<std::byte*>(memory);
  if (bytes == 0 || reinterpret_cast<std::uintptr_t>(start) % 4096 != 0) return kInvalidValue;
  call.machine.wait_idle(call.lock, *current_device(), __func__);
  for (std::size_t i = 0; i < bytes; i += 4096) const_cast<volatile std::byte&>(start[i]) = start[i];
  call.machine.pinned[start] = bytes;
  call.machine.registered.insert(start);
  call.machine.pinned_bytes += bytes;
  return kSuccess;
}

EXPORT Outcome cuMemHostUnregister(void* memory) {
  ENTER(call);
  if (current_device() == nullptr) return kInvalidContext;
  TRY(call.unsafe());
  if (call.machine.registered.erase(static_cast<std::byte*>(memory)) == 0) return kInvalidValue;
  call.machine.wait_idle(call.lock, *current_device(), __func__);
  const auto found = call.machine.pinned.find(static_cast<std::byte*>(memory));
  call.machine.pinned_bytes -= found->second;
  call.machine.pinned.erase(found);
  return kSuccess;
}

EXPORT Outcome cuMemFreeHost(void* memory) {
  ENTER(call);
  if (current_device() == nullptr) return kInvalidContext;
  TRY(call.unsafe());
  if (!call.machine.pinned.contains(static_cast<std::byte*>(memory)) ||
      call.machine.registered.contains(static_cast<std::byte*>(memory))) {
    return kInvalidValue;
  }
  call.machine.wait_idle(call.lock, *current_device(), __func__);
  const auto found = call.machine.pinned.find(static_cast<std::byte*>(memory));
  call.machine.pinned_bytes -= found->second;
  ::munmap(memory, found->second);
  call.machine.pinned.erase(found);
  return kSuccess;
}

EXPORT Outcome cuPointerGetAttribute(void* value, int attribute, Pointer pointer) {
  ENTER(call);
  const fake::Device* device = call.machine.owner_of(address(pointer));
  if (device != nullptr && !call.machine.within_allocation(address(pointer), 1)) return kInvalidValue;
  bool is_pinned = false;
  for (const auto& [start, bytes] : call.machine.pinned) {
    is_pinned |= address(pointer) >= start && address(pointer) < start + bytes;
  }
  if (device == nullptr && !is_pinned) return kInvalidValue;
  if (attribute == kPointerMemoryType) {
    *static_cast<unsigned*>(value) = device == nullptr ? kMemoryHost : kMemoryDevice;
  } else if (attribute == kPointerDeviceOrdinal) {
    *static_cast<int*>(value) = device == nullptr ? 0 : device->index;
  } else {
    return kInvalidValue;
  }
  return kSuccess;
}

// ---- Memory for other processes ----

namespace {

// What a handle holds: where the pages of an allocation are found. They need FAKE_CUDA_IPC in the process that has
// them.
struct Shared {
  int process;
  int file;
  std::size_t offset;
  std::size_t bytes;
};
static_assert(sizeof(Shared) <= sizeof(IpcHandle));

std::map<void*, std::size_t> opened;  // by the machine's mutex

}  // namespace

// Only the beginning of an allocation that is not of a pool has a handle.
EXPORT Outcome cuIpcGetMemHandle(IpcHandle* handle, Pointer memory) {
  ENTER(call);
  TRY(call.context());
  fake::Device* const device = call.machine.owner_of(address(memory));
  if (device == nullptr) return kInvalidValue;
  auto* const start = static_cast<std::byte*>(address(memory));
  const auto found = device->live.find(start);
  if (found == device->live.end() || device->pooled.contains(start)) return kInvalidValue;
  const Shared shared{::getpid(), device->file, static_cast<std::size_t>(start - device->base), found->second};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &shared, sizeof shared);
  return kSuccess;
}

EXPORT Outcome cuIpcOpenMemHandle_v2(Pointer* memory, IpcHandle handle, unsigned flags) {
  ENTER(call);
  TRY(call.context());
  Shared shared{};
  std::memcpy(&shared, &handle, sizeof shared);
  if (flags != kIpcLazyEnablePeerAccess) return kInvalidValue;
  if (shared.process == ::getpid()) return kInvalidContext;  // as the driver's
  if (shared.file < 0) return kNotSupported;
  const std::string path = "/proc/" + std::to_string(shared.process) + "/fd/" + std::to_string(shared.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kInvalidValue;
  const auto offset = static_cast<off_t>(shared.offset);
  void* const pages = ::mmap(nullptr, shared.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset);
  ::close(file);
  if (pages == MAP_FAILED) return kOutOfMemory;
  opened[pages] = shared.bytes;
  *memory = reinterpret_cast<std::uintptr_t>(pages);
  return kSuccess;
}

EXPORT Outcome cuIpcCloseMemHandle(Pointer memory) {
  ENTER(call);
  const auto found = opened.find(address(memory));
  if (found == opened.end()) return kInvalidValue;
  ::munmap(found->first, found->second);
  opened.erase(found);
  return kSuccess;
}

EXPORT size_t fake_cuda_opened(void) {
  Call call("fake_cuda_opened");
  return opened.size();
}
