// A fake libnccl: the functions beside NCCL's own with which tests control it. They are C, so that Python's ctypes can
// call them.
//
// Ranks are threads or processes of one host and meet in shared memory, which the last rank to join unlinks. Work runs
// on the streams of the fake libcuda and waits there for peers, like a kernel. A send ends when it has been received,
// so wrongly grouped calls hang until they are aborted. The death of a peer is noticed only as a hang. Ranks that put
// different collectives into one group hang with an asynchronous error.
//
// Misuse ends the process with a message: a function that the configured version lacks, a call on a communicator
// without its device as the current one, wrong arguments, memory that is freed while a communicator has it registered,
// or memory that is freed or unregistered while unfinished work uses it.
//
// Environment, read when the library is loaded:
//   FAKE_NCCL_VERSION=22903         as NCCL numbers its versions (23203)
//   FAKE_NCCL_DEFER_US=300          delay before a nonblocking communicator begins work (0: at the next status query)
//   FAKE_NCCL_DELAY_US=500          least duration of every group on its stream (0)
//   FAKE_NCCL_HANG_AT_START=1       joining never ends
//   FAKE_NCCL_ERROR_AT=3            the third group of this process never ends, with an asynchronous error
//   FAKE_NCCL_FAIL=AllReduce:3:2    the third call of the function fails with 2
//   NCCL_MULTI_RANK_GPU_ENABLE=1    like NCCL, from 2.30 on
//   NCCL_WIN_ENABLE=0               like NCCL: windows are silently not made (1)
//   FAKE_NCCL_CONNECTS=1            the first collective of a kind blocks a blocking communicator until all have called
//   FAKE_NCCL_KERNELS=1             how many groups run on a device at once, in the order of their launches (0: all)
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#define FAKE_NCCL_EXPORT __attribute__((visibility("default")))

// "version", "defer_us", "delay_us", "hang_at_start", "multi_rank_gpu", "windows", "kernels", "connects"; "error_at":
// counted from now on. "memory_waits": ncclMemAlloc and ncclMemFree wait until the device is idle.
FAKE_NCCL_EXPORT void fake_nccl_set(const char* what, long value);
// Makes the k-th call from now on of this function (1: the next; name without "nccl") fail with the code.
FAKE_NCCL_EXPORT void fake_nccl_fail(const char* function, int k, int code);
// Resets all plans, settings and counts of calls.
FAKE_NCCL_EXPORT void fake_nccl_reset(void);
// Number of calls of a function in this process.
FAKE_NCCL_EXPORT long fake_nccl_calls(const char* function);
// Number of existing objects: "communicators", "shared" (those that share with the one that they were split from),
// "memory", "registrations", "windows", "operations" (made by communicators), "files" (in /dev/shm, of this process's
// ids).
FAKE_NCCL_EXPORT long fake_nccl_count(const char* what);

#ifdef __cplusplus
}
#endif
