// The shared-memory transport connects ranks of one host by channels that are rings in one shared segment.
#pragma once

#include <memory>
#include <vector>

#include "contract/transport.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {

// A peer that has left is lost when this rank needs more from it. A peer whose process has ended is lost as soon as
// everything it wrote has been read.
//
// `rings` has shm_ring_bytes() and is shared over `neighbours`. `local_of[r]` is the index in `neighbours` of the
// communicator's rank r, or -1 if r is no peer.
Result<std::unique_ptr<Transport>> make_shm_transport(std::shared_ptr<Neighbours> neighbours, Bytes rings,
                                                      std::vector<int> local_of);

// Each rank contributes `bytes_of_rank`, which its rings to all peers divide, or the least that they need.
std::size_t shm_ring_bytes(int ranks, std::size_t bytes_of_rank);

}  // namespace fdl
