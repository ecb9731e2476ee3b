// Call checks: the checks of the arguments of ordered collectives and messages. They read the call alone, and return
// the text of the first fault, without the rank.
#pragma once

#include <cstddef>
#include <span>

#include "capi/arguments.h"
#include "farandole/farandole.h"

namespace fdl::capi {

bool reduces(fdl_collective kind);
// Whether each rank contributes or receives its own count: the kinds that have a form with an array of counts.
bool has_counts(fdl_collective kind);

// The lengths of the arrays of counts. Call it before any entry of them is read.
Fault fault_of_lengths(const fdl_call& call, int size);

// A collective. `counts` and `recv_counts` have one entry for each rank where has_counts(), else they are empty.
Fault fault_of_collective(const fdl_call& call, const fdl_call_options& options, int rank, int size,
                          std::span<const std::size_t> counts, std::span<const std::size_t> recv_counts);

// A compression and what it is given for. `takes_kind`: the collective can be compressed; `has_op`: it reduces.
Fault fault_of_compression(fdl_compression compression, fdl_dtype dtype, bool takes_kind, bool has_op, fdl_reduce_op op,
                           int device_kind);

// A send or a receive; `call.root` is the peer.
Fault fault_of_message(const fdl_call& call, int size);

}  // namespace fdl::capi
