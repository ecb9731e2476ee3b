// A signature is one number for everything that ranks must agree on in a collective call. These functions compute it
// and build the error texts for calls that differ.
#pragma once

#include "contract/collectives.h"
#include "transports/shm/shm_layout.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {

// `before` is the signature of the previous operation, so that every later signature also differs after a difference.
uint64_t sign(uint64_t before, const CollectiveSpec& spec);
Called called(const CollectiveSpec& spec);
// "allreduce of 1000 float32 with sum", "broadcast of 10 uint8 from rank 0 of the group"
std::string describe(const Called& called);

// The error for this rank and `other`, whose calls under the same operation number differ.
Status different_calls(const Neighbours& neighbours, const ShmLayout& layout, int other, uint64_t operation);
// The error of alltoall if `other` sends this rank a block of a size that this rank does not expect.
Status different_block(const Neighbours& neighbours, int other, std::size_t sent_bytes, std::size_t expected_bytes);

}  // namespace fdl
