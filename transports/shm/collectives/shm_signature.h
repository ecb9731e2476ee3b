// Signatures: one number for all that ranks must agree on when they call a collective, and the errors when they do not.
#pragma once

#include "contract/collectives.h"
#include "transports/shm/shm_layout.h"
#include "transports/shm/shm_neighbours.h"

namespace fdl {

// `before` is the signature of the operation before, so that a difference is never forgotten.
uint64_t sign(uint64_t before, const CollectiveSpec& spec);
Called called(const CollectiveSpec& spec);
// "allreduce of 1000 float32 with sum", "broadcast of 10 uint8 from rank 0 of the group"
std::string describe(const Called& called);

// This rank and `other` have announced different things under one number.
Status different_calls(const Neighbours& neighbours, const ShmLayout& layout, int other, uint64_t operation);
// alltoall: `other` sends this rank a block of another size than this rank expects.
Status different_block(const Neighbours& neighbours, int other, std::size_t sent_bytes, std::size_t expected_bytes);

}  // namespace fdl
