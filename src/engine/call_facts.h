// The call facts are those properties of a call that all ranks compute alike, so that all choose the same algorithm.
#pragma once

#include <cstddef>

#include "algorithms/catalog.h"
#include "contract/collectives.h"

namespace fdl {

// The bytes of the whole vector, or of all chunks on the side that has one chunk for each rank.
std::size_t known_bytes(const CollectiveSpec& spec, int ranks);

// What the algorithm must be able to do. `deterministic`: the configuration demands it of all collectives.
Need need_of(const CollectiveSpec& spec, bool deterministic);

}  // namespace fdl
