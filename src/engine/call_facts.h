// Call facts: what all ranks know alike of a call, and may therefore choose by.
#pragma once

#include <cstddef>

#include "algorithms/catalog.h"
#include "contract/collectives.h"

namespace fdl {

// What all ranks know of the size: of the whole vector, or of all chunks of the side that has one for each rank.
std::size_t known_bytes(const CollectiveSpec& spec, int ranks);

// What the algorithm must be able to do. `deterministic`: whether all collectives are asked to be.
Need need_of(const CollectiveSpec& spec, bool deterministic);

}  // namespace fdl
