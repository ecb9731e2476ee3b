// A fake libcuda: the functions beside the driver's own with which tests control it. They are C, so that Python's
// ctypes can call them.
//
// Streams are queues, each run by a thread. Device memory is closed to the CPU (PROT_NONE) unless a stream runs work,
// so CPU code that touches it crashes. Host functions may not call the driver. Kernels are those of cuda/, run over all
// blocks and threads by the same bodies as on a device.
//
// Environment, read once at cuInit:
//   FAKE_CUDA_DEVICES=2          number of devices (1)
//   FAKE_CUDA_IPC=1              other processes can open memory of the devices; a process must not fork after cuInit
//   FAKE_CUDA_MACHINE=name       the identities of devices differ between machine names
//   FAKE_CUDA_DELAY_US=500       least duration of every operation of every stream (0)
//   FAKE_CUDA_MEMORY=1048576     bytes of memory of each device (8 GiB)
//   FAKE_CUDA_DRIVER=12040       the driver's version (13000)
//   FAKE_CUDA_REFUSE_MODULE=222  modules are refused with this code, as by a too old driver
//   FAKE_CUDA_FAIL=cuMemAlloc_v2:3:2,cuEventRecord:1:999    the third call of the one fails with 2, the first of the
//   other with 999
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAKE_EXPORT __attribute__((visibility("default")))

// Copy between host and device memory at once, without any stream. Synchronize first.
FAKE_EXPORT void fake_cuda_write(void* device, const void* host, size_t bytes);
FAKE_EXPORT void fake_cuda_read(const void* device, void* host, size_t bytes);
// Allocates memory of a device without a context; null if there is not enough.
FAKE_EXPORT void* fake_cuda_new(int device, size_t bytes);
FAKE_EXPORT void fake_cuda_delete(void* memory);
// Bytes of device memory and of pinned memory that this process uses.
FAKE_EXPORT size_t fake_cuda_device_bytes(void);
FAKE_EXPORT size_t fake_cuda_pinned_bytes(void);

// Allocations of other processes that this process has open.
FAKE_EXPORT size_t fake_cuda_opened(void);

// How often the primary context of a device is retained.
FAKE_EXPORT int fake_cuda_retained(int device);

// Makes the k-th call from now on of this function (1: the next) fail with the code. "device memory" is each allocation
// of a device's memory, by any function. Clearing removes all such plans.
FAKE_EXPORT void fake_cuda_fail(const char* function, int k, int code);
FAKE_EXPORT void fake_cuda_clear_failures(void);
FAKE_EXPORT void fake_cuda_delay_us(unsigned microseconds);
FAKE_EXPORT void fake_cuda_memory(size_t bytes);  // size of each device's memory
FAKE_EXPORT void fake_cuda_driver_version(int version);
FAKE_EXPORT void fake_cuda_pools(int has_pools);        // whether devices support cuMemAllocAsync
FAKE_EXPORT void fake_cuda_capability(int capability);  // of all devices: 90 is 9.0
// Whether cuMemAlloc waits for the device, as the driver's does where it needs new pages (0).
FAKE_EXPORT void fake_cuda_allocations_wait(int wait);
// The host's NUMA nodes: device i is near node i modulo this number. 0: the host has none.
FAKE_EXPORT void fake_cuda_numa_nodes(int nodes);
// Whether devices access registered memory of the host by the host's addresses.
FAKE_EXPORT void fake_cuda_registers_at_address(int does);
// Tensors that a kernel has packed or unpacked by accesses of less than 16 bytes, because of their place in the vector.
FAKE_EXPORT size_t fake_cuda_narrow_segments(void);
FAKE_EXPORT void fake_cuda_refuse_module(int code);  // 0: accept modules again
// Makes the device fail: from now on every call for it returns the code, queued work never runs, and host functions are
// not called. Code 0 restores the device without its queued work.
FAKE_EXPORT void fake_cuda_fall_off(int device, int code);
// Hold all streams before their next operation, and let them continue.
FAKE_EXPORT void fake_cuda_hold(void);
FAKE_EXPORT void fake_cuda_go_on(void);
// Number of calls of a function of the driver.
FAKE_EXPORT size_t fake_cuda_calls(const char* function);

// Queues a function on a stream (0: the default stream), for fakes of other libraries. It runs on the stream's thread,
// may block, and may touch device memory between open and close. Returns a code of the driver.
FAKE_EXPORT int fake_cuda_queue(void* stream, void (*function)(void*), void* argument);
FAKE_EXPORT void fake_cuda_open_memory(void);
FAKE_EXPORT void fake_cuda_close_memory(void);
// The code with which the device of the current context failed, or 0.
FAKE_EXPORT int fake_cuda_fallen(void);

// Begins a capture: work that is queued on the stream, and on streams that wait for it, is kept and does not run.
FAKE_EXPORT int fake_cuda_begin_capture(void* stream);
// Ends the capture. Returns the number of operations kept, or minus the code of the fault.
FAKE_EXPORT int fake_cuda_end_capture(void* stream);
// Queues the operations of the last capture in order. May be called any number of times.
FAKE_EXPORT int fake_cuda_launch_captured(void* stream);

#ifdef __cplusplus
}
#endif
