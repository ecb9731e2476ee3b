// The ordered calls run every ordered function of the C API, blocking or as a request.
#pragma once

#include <span>

#include "base/thread_role.h"
#include "capi/objects.h"
#include "runtime/progress/ended_communicator.h"

namespace fdl::capi {

// Returns an error if `comm` is NULL, its world has ended, or this process is a forked child.
Status check(fdl_comm* comm);

// Whether this thread is in a callback of the world, where a wait for other ranks would keep this one from answering
// them. Such a call is refused with Runtime::may_wait().
inline bool is_in_callback(const fdl_comm* comm) {
  return running_callbacks.load(std::memory_order_relaxed) != 0 && comm->world->runtime->drives_here();
}

// Runs a collective. If `request` is null, the call blocks. Otherwise it returns at once and *request owns the
// operation, which reads `call.input` and writes `call.output` until it has completed. `options` may be null.
fdl_result run_collective(fdl_comm* comm, const fdl_call& call, const fdl_call_options* options, fdl_request** request);
// Runs a send or a receive in the same way.
fdl_result run_message(fdl_comm* comm, const fdl_call& call, const fdl_call_options* options, fdl_request** request);
// Submits a collective, a send or a receive. The communicator is shared from now on.
fdl_result submit_call(fdl_comm* comm, const fdl_call& call, const fdl_call_options* options, fdl_handle** handle);
// Submits collectives that are launched together: all, or none after an error. `options` may be null, and so may each
// of its elements. There is at least one call; `handles` has as many places.
fdl_result submit_group(fdl_comm* comm, std::span<const fdl_call> calls, const fdl_call_options* const* options,
                        fdl_handle** handles);

// Checks the sizes of the caller's structures, whose addresses must not be NULL but for that of the options, and the
// options' time limit.
Fault fault_of_structures(const fdl_call& call, const fdl_call_options* options);
// The caller's structure may be of an older version: fields that it lacks keep their defaults.
fdl_call known_call(const fdl_call& given);
// Reports that a function which drives the communicator cannot be used, because its world does.
fdl_result refuse_shared(fdl_comm* comm, const char* function);

// The stream of a message that was started as a request waits for it, once. Does nothing for other calls.
Status order_stream_behind(OrderedCall& call);
// Calls `work`, which drives the communicator in this thread. An exception ends the communicator before the operations
// of the caller are freed, and is the failure that is returned.
template <typename Work>
Status drive(fdl_comm* comm, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return end_by_exception(comm->comm(), error);
  }
}

// When a wait for the request that begins now ends the communicator.
Deadline limit_of(const fdl_request& request);
// Waits for one request until its own limit or the given one, frees it and reports its outcome. In a callback the
// request must be done.
fdl_result finish(fdl_request* request);
fdl_result finish(fdl_request* request, Deadline limit);

}  // namespace fdl::capi
