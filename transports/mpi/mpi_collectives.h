// MPI's own collectives, for calls that name the algorithm `whole`.
#pragma once

#include <memory>

#include "base/status.h"
#include "contract/collectives.h"
#include "contract/membership.h"
#include "transports/mpi/mpi_library.h"

namespace fdl {

// Collective over the members, as connect_mpi() is. They are never chosen automatically: MPI does not promise the order
// of additions. Supported: allreduce, reduce, broadcast, allgather and barrier of up to 2^31 - 1 elements; reductions
// of the types and operations that MPI has (no float16, bfloat16, float8, bool), times a postscale. What is not
// supported runs as a schedule, or is refused if `whole` was named.
//
// MPI cannot end a collective that has begun: if a member is lost meanwhile, its memory stays in use until the process
// ends.
Result<std::unique_ptr<Collectives>> make_mpi_collectives(const Membership& membership);
Result<std::unique_ptr<Collectives>> make_mpi_collectives_over(MpiLibrary& mpi, const Membership& membership);

}  // namespace fdl
