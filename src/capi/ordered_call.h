// Ordered calls: the way that every ordered function of the C API takes, blocking or as a request.
#pragma once

#include "capi/objects.h"

namespace fdl::capi {

// Whether `comm` can be used: not NULL, its world not ended, and not in a forked child.
Status check(fdl_comm* comm);

// Runs a collective. Where `request` is null the call blocks; otherwise it returns at once and *request owns the
// operation, which reads `call.input` and writes `call.output` until it has completed. `options` may be null.
fdl_result run_collective(fdl_comm* comm, const fdl_call& call, const fdl_call_options* options, fdl_request** request);
// Runs a send or a receive likewise.
fdl_result run_message(fdl_comm* comm, const fdl_call& call, const fdl_call_options* options, fdl_request** request);

// Waits for one request and frees it.
fdl_result finish(fdl_request* request);

}  // namespace fdl::capi
