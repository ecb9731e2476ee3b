// The shared-memory readiness flags hold the words of all ranks in one segment. Each word is written by its rank alone.
#pragma once

#include <memory>

#include "contract/readiness_flags.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {

// Bytes that the words of so many ranks take in the segment.
std::size_t shm_readiness_flags_bytes(int ranks);

// `memory` must be zeroed, the same on all ranks, and aligned to 128 bytes. The flags share the doorbell of
// `neighbours` with the other users of `neighbours`.
std::unique_ptr<ReadinessFlags> make_shm_readiness_flags(std::shared_ptr<Neighbours> neighbours, Bytes memory);

}  // namespace fdl
