// answer_of_levels() reports whether a collective would go over NUMA nodes and how. It runs the same plan as the
// collective itself.
#pragma once

#include <span>

#include "contract/collectives.h"
#include "contract/levels.h"

namespace fdl {

// `node_of_rank` has the NUMA node to which each rank of one host is bound; a negative number means none. `is_enabled`
// and `shm_bytes` are the settings numa_levels and shm_bytes.
LevelAnswer answer_of_levels(std::span<const int> node_of_rank, const CollectiveSpec& spec, bool is_enabled,
                             std::size_t shm_bytes);

}  // namespace fdl
