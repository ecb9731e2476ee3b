// The shared-memory collectives run whole collectives on one host: every rank reads its neighbours' slots directly.
#pragma once

#include <memory>

#include "contract/collectives.h"
#include "contract/host_memory.h"
#include "transports/shm/numa/shm_nodes.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {

// `slots` is the memory of a ShmLayout, shared over `neighbours`. `own_core` means that no other rank needs the core
// this one runs on; then start() polls the others before it returns.
//
// Operations that are not small skip staging if the buffers that other ranks read or write are in `memory`, which may
// be null. Each element is folded in rank order, so the bits do not depend on size, steps or memory. If ranks call
// different collectives, all get an error that names two of them and their calls.
std::unique_ptr<Collectives> make_shm_collectives(std::shared_ptr<Neighbours> neighbours, Bytes slots,
                                                  const ShmNodes& nodes, std::shared_ptr<HostMemory> memory,
                                                  bool own_core);

}  // namespace fdl
