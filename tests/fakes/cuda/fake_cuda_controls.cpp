// This file implements the functions with which tests control the fake libcuda.
#include <algorithm>
#include <cstring>

#include "tests/fakes/cuda/fake_cuda_call.h"

namespace {

void copy_now(void* target, const void* source, std::size_t bytes) {
  Machine& machine = Machine::get();
  machine.open_memory();
  if (bytes > 0) std::memcpy(target, source, bytes);  // a vector without elements has no address
  machine.close_memory();
}

}  // namespace

EXPORT void fake_cuda_write(void* device, const void* host, size_t bytes) { copy_now(device, host, bytes); }
EXPORT void fake_cuda_read(const void* device, void* host, size_t bytes) { copy_now(host, device, bytes); }

EXPORT int fake_cuda_retained(int device) {
  Call call("fake_cuda_retained");
  fake::Device* owner = nullptr;
  return device_numbered(call, device, &owner) == kSuccess ? owner->retained : -1;
}

EXPORT void* fake_cuda_new(int device, size_t bytes) {
  if (cuInit(0) != kSuccess) return nullptr;
  Call call("fake_cuda_new");
  fake::Device* owner = nullptr;
  void* memory = nullptr;
  if (device_numbered(call, device, &owner) != kSuccess) return nullptr;
  return call.machine.allocate(*owner, bytes, &memory) == kSuccess ? memory : nullptr;
}

EXPORT void fake_cuda_delete(void* memory) {
  Call call("fake_cuda_delete");
  (void)call.machine.free_memory(call.lock, memory, __func__);
}

EXPORT size_t fake_cuda_device_bytes(void) {
  Call call("fake_cuda_device_bytes");
  std::size_t bytes = 0;
  for (const auto& device : call.machine.devices) bytes += device->used;
  return bytes;
}

EXPORT size_t fake_cuda_pinned_bytes(void) {
  Call call("fake_cuda_pinned_bytes");
  return call.machine.pinned_bytes;
}

EXPORT void fake_cuda_fail(const char* function, int k, int code) {
  Call call("fake_cuda_fail");
  call.machine.plan_failure(function, k, code);
}

EXPORT void fake_cuda_clear_failures(void) {
  Call call("fake_cuda_clear_failures");
  call.machine.clear_failures();
}

EXPORT void fake_cuda_delay_us(unsigned microseconds) {
  Call call("fake_cuda_delay_us");
  call.machine.delay_us = microseconds;
}

EXPORT void fake_cuda_memory(size_t bytes) {
  Call call("fake_cuda_memory");
  call.machine.memory_bytes = bytes;
}

EXPORT void fake_cuda_pools(int has_pools) {
  Call call("fake_cuda_pools");
  call.machine.has_pools = has_pools != 0;
}

EXPORT void fake_cuda_numa_nodes(int nodes) {
  Call call("fake_cuda_numa_nodes");
  call.machine.numa_nodes = nodes;
}

EXPORT void fake_cuda_registers_at_address(int does) {
  Call call("fake_cuda_registers_at_address");
  call.machine.registers_at_address = does != 0;
}

EXPORT void fake_cuda_allocations_wait(int wait) {
  Call call("fake_cuda_allocations_wait");
  call.machine.allocations_wait = wait != 0;
}

EXPORT void fake_cuda_capability(int capability) {
  Call call("fake_cuda_capability");
  call.machine.capability = capability;
}

EXPORT size_t fake_cuda_narrow_segments(void) { return narrow_segments.load(); }

EXPORT void fake_cuda_driver_version(int version) {
  Call call("fake_cuda_driver_version");
  call.machine.driver_version = version;
}

EXPORT void fake_cuda_refuse_module(int code) {
  Call call("fake_cuda_refuse_module");
  call.machine.refused_module = code;
}

EXPORT void fake_cuda_fall_off(int device, int code) {
  Call call("fake_cuda_fall_off");
  fake::Device* owner = nullptr;
  if (device_numbered(call, device, &owner) == kSuccess) call.machine.fall(*owner, code);
}

EXPORT void fake_cuda_hold(void) {
  Call call("fake_cuda_hold");
  call.machine.held = true;
}

EXPORT void fake_cuda_go_on(void) {
  Call call("fake_cuda_go_on");
  call.machine.held = false;
  call.machine.changed.notify_all();
}

EXPORT size_t fake_cuda_calls(const char* function) {
  Call call("fake_cuda_calls");
  return call.machine.calls(function);
}

EXPORT int fake_cuda_queue(void* handle, void (*function)(void*), void* argument) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find_for_work(handle, &stream));
  return call.machine.queue(stream, [=] {
    function(argument);
    return kSuccess;
  });
}

EXPORT void fake_cuda_open_memory(void) { Machine::get().open_memory(); }
EXPORT void fake_cuda_close_memory(void) { Machine::get().close_memory(); }

EXPORT int fake_cuda_fallen(void) {
  Call call("fake_cuda_fallen");
  return current_device() == nullptr ? kInvalidContext : current_device()->fallen;
}
