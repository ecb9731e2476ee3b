// The ordered calls run every ordered function of the C API, blocking or as a request.
#pragma once

#include "capi/objects.h"

namespace fdl::capi {

// Returns an error if `comm` is NULL, its world has ended, or this process is a forked child.
Status check(fdl_comm* comm);

// Runs a collective. If `request` is null, the call blocks. Otherwise it returns at once and *request owns the
// operation, which reads `call.input` and writes `call.output` until it has completed. `options` may be null.
fdl_result run_collective(fdl_comm* comm, const fdl_call& call, const fdl_call_options* options, fdl_request** request);
// Runs a send or a receive in the same way.
fdl_result run_message(fdl_comm* comm, const fdl_call& call, const fdl_call_options* options, fdl_request** request);

// Waits for one request, frees it and reports its outcome.
fdl_result finish(fdl_request* request);

}  // namespace fdl::capi
