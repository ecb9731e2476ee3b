// MPI's own collectives, for calls that name the algorithm `whole`.
#pragma once

#include <memory>

#include "base/status.h"
#include "contract/collectives.h"
#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

// Makes the collectives of a communicator whose transport is that of connect_mpi(); null for another transport. They
// are never chosen automatically: MPI does not promise the order of additions. Supported: allreduce, reduce, broadcast,
// allgather and barrier of up to 2^31 - 1 elements; reductions of the types and operations that MPI has (no float16,
// bfloat16, float8, bool), times a postscale. What is not supported runs as a schedule, or is refused if `whole` was
// named.
//
// MPI cannot end a collective that has begun: if a member is lost meanwhile, its memory stays in use until the process
// ends.
Result<std::unique_ptr<Collectives>> make_mpi_collectives(const Transport& transport, const Membership& membership);

}  // namespace fdl
