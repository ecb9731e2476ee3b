// Shared-memory collectives: whole collectives on one host, every rank reading its neighbours' slots directly.
#pragma once

#include <memory>

#include "contract/collectives.h"
#include "contract/host_memory.h"
#include "transports/shm/numa/shm_nodes.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {

// `slots`: what the collectives share, a ShmLayout over the neighbours. `own_core`: no other rank needs the core that
// this one runs on, so that looking for the others is worth it.
//
// Operations that do not go at once need no staging where buffers that others read or write are `memory`'s.
// Bits: each element is folded in rank order, whatever the size, the steps and the memory.
// Ranks that call different collectives get an error that names two of them and what each called.
std::unique_ptr<Collectives> make_shm_collectives(std::shared_ptr<Neighbours> neighbours, Bytes slots,
                                                  const ShmNodes& nodes, std::shared_ptr<HostMemory> memory,
                                                  bool own_core);

}  // namespace fdl
