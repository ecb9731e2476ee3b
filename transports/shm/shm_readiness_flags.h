// Shared-memory board: the words of all ranks in one segment, each written by its rank alone.
#pragma once

#include <memory>

#include "contract/readiness_flags.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {

// What it takes of the segment.
std::size_t shm_readiness_flags_bytes(int ranks);

// `memory`: zeroed, the same on all ranks, aligned to 128 bytes. It shares the neighbours' doorbell with whoever else
// sleeps with them.
std::unique_ptr<ReadinessFlags> make_shm_readiness_flags(std::shared_ptr<Neighbours> neighbours, Bytes memory);

}  // namespace fdl
