// Stand-in for libcuda: what tests ask of it beside the driver's own functions. C, so that Python's ctypes can, too.
//
// Streams are queues, each run by a thread. Device memory is closed to the CPU (PROT_NONE) unless a stream runs work:
// code that touches it by itself crashes. Host functions may not call the driver. Kernels are those of cuda/, run over
// all blocks and threads by the same bodies as on a device.
//
// Environment, read once at cuInit:
//   FAKE_CUDA_DEVICES=2          how many devices there are (1)
//   FAKE_CUDA_MACHINE=name       devices have other identities on a machine of another name
//   FAKE_CUDA_DELAY_US=500       every operation of every stream takes at least so long (0)
//   FAKE_CUDA_MEMORY=1048576     bytes of memory of each device (8 GiB)
//   FAKE_CUDA_DRIVER=12040       the driver's version (13000)
//   FAKE_CUDA_REFUSE_MODULE=222  modules are refused with this code: a driver too old for them
//   FAKE_CUDA_FAIL=cuMemAlloc_v2:3:2,cuEventRecord:1:999    the third call of one fails with 2, the first of another
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAKE_EXPORT __attribute__((visibility("default")))

// Copies between memory of the host and of a device, at once, past all streams. A test synchronizes first.
FAKE_EXPORT void fake_cuda_write(void* device, const void* host, size_t bytes);
FAKE_EXPORT void fake_cuda_read(const void* device, void* host, size_t bytes);
// Memory of a device without a context; null when there is none left.
FAKE_EXPORT void* fake_cuda_new(int device, size_t bytes);
FAKE_EXPORT void fake_cuda_delete(void* memory);
// Bytes of a device's and of pinned memory that are in use, of all in this process.
FAKE_EXPORT size_t fake_cuda_device_bytes(void);
FAKE_EXPORT size_t fake_cuda_pinned_bytes(void);

// The k-th call from now on of this function (1: the next) fails with the code. Clearing forgets all such plans.
FAKE_EXPORT void fake_cuda_fail(const char* function, int k, int code);
FAKE_EXPORT void fake_cuda_clear_failures(void);
FAKE_EXPORT void fake_cuda_delay_us(unsigned microseconds);
FAKE_EXPORT void fake_cuda_memory(size_t bytes);  // of each device, used or not
FAKE_EXPORT void fake_cuda_driver_version(int version);
FAKE_EXPORT void fake_cuda_refuse_module(int code);  // 0: no more
// From now on every call that has to do with the device fails with the code, what is queued never runs, host functions
// are not called. 0: it is back, and what was queued is lost.
FAKE_EXPORT void fake_cuda_fall_off(int device, int code);
// Holds all streams before their next operation, and lets them go on.
FAKE_EXPORT void fake_cuda_hold(void);
FAKE_EXPORT void fake_cuda_go_on(void);
// How often a function of the driver was called.
FAKE_EXPORT size_t fake_cuda_calls(const char* function);

// Queues a function on a stream of the stand-in (0: the default stream): for stand-ins of other libraries. It runs on
// the stream's thread, may block, and reaches device memory between open and close. Returns a code of the driver.
FAKE_EXPORT int fake_cuda_queue(void* stream, void (*function)(void*), void* argument);
FAKE_EXPORT void fake_cuda_open_memory(void);
FAKE_EXPORT void fake_cuda_close_memory(void);
// The code with which the device of the current context fell off; 0: it did not.
FAKE_EXPORT int fake_cuda_fallen(void);

// Recording into a graph: what is queued on the stream, and on streams that wait for it, is kept and does not run.
FAKE_EXPORT int fake_cuda_begin_capture(void* stream);
// Ends it; the number of operations kept, or -1 where something that is not allowed happened meanwhile.
FAKE_EXPORT int fake_cuda_end_capture(void* stream);
// Queues what was kept last, in its order. Any number of times.
FAKE_EXPORT int fake_cuda_launch_captured(void* stream);

#ifdef __cplusplus
}
#endif
