// ShmLevelAnswer: whether a collective would go over NUMA nodes, and how, said by the plan that would run it.
#pragma once

#include <span>

#include "contract/collectives.h"
#include "contract/levels.h"

namespace fdl {

// `node_of_rank`: to which each rank of one host is bound; below 0: to none. `is_wanted` and `shm_bytes`: the knobs
// numa_levels and shm_bytes.
LevelAnswer answer_of_levels(std::span<const int> node_of_rank, const CollectiveSpec& spec, bool is_wanted,
                             std::size_t shm_bytes);

}  // namespace fdl
