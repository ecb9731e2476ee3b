// Stand-in for libnccl: what tests ask of it beside NCCL's own functions. C, so that Python's ctypes can, too.
//
// Ranks are threads or processes of one host and meet in shared memory, which the last one to come unlinks. Work runs
// on the streams of the stand-in for libcuda and waits there for peers, as a kernel would: a send ends when it has been
// received, so what is wrongly grouped hangs until it is aborted. Nobody learns of a peer's death but by hanging.
// Ranks that put different collectives into one group disagree, and hang with an asynchronous error.
// What the version that is set does not have, or uses wrongly, ends the process with a line; so does memory that is
// freed while a communicator knows it, or freed or forgotten while work that is not through uses it.
//
// Environment, read when the library is loaded:
//   FAKE_NCCL_VERSION=22903      in NCCL's own numbers (23203)
//   FAKE_NCCL_DEFER_US=300       after how long a nonblocking communicator begins what it was given (0: at the next
//                                   question)
//   FAKE_NCCL_DELAY_US=500       every group takes at least so long on its stream (0)
//   FAKE_NCCL_HANG_AT_START=1    communicators never come about
//   FAKE_NCCL_ERROR_AT=3         the third group of this process never ends, with an asynchronous error
//   FAKE_NCCL_FAIL=AllReduce:3:2 the third call of one fails with 2
//   NCCL_MULTI_RANK_GPU_ENABLE=1    as NCCL's own, from 2.30 on
//   NCCL_WIN_ENABLE=0               as NCCL's own: windows are not made, and nobody is told (1)
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#define FAKE_NCCL_EXPORT __attribute__((visibility("default")))

// "version", "defer_us", "delay_us", "hang_at_start", "multi_rank_gpu", "windows"; "error_at": counted from now on.
FAKE_NCCL_EXPORT void fake_nccl_set(const char* what, long value);
// The k-th call from now on of this function (1: the next; without "nccl") fails with the code.
FAKE_NCCL_EXPORT void fake_nccl_fail(const char* function, int k, int code);
// Forgets all plans and settings, and the counts of calls.
FAKE_NCCL_EXPORT void fake_nccl_reset(void);
// How often a function was called in this process.
FAKE_NCCL_EXPORT long fake_nccl_calls(const char* function);
// What is there at present: "communicators", "memory", "registrations", "windows", "operations" (made ones),
// "files" (in /dev/shm, of this process's ids).
FAKE_NCCL_EXPORT long fake_nccl_count(const char* what);

#ifdef __cplusplus
}
#endif
