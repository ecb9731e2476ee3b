// Fusion: puts small sums that are alike into one bucket.
#pragma once

#include <cstddef>
#include <vector>

#include "agree/negotiation/message.h"

namespace fdl {

// Buckets of one tensor each become buckets of several: allreduces without error that share dtype, op, scales and
// device, up to `fusion_bytes`. Each tensor goes, in order, into the first bucket it matches and fits, past others that
// it does not; so order is kept within a bucket, and between buckets the first tensor of each decides. A larger tensor
// stays alone; 0 fuses nothing.
std::vector<Bucket> fuse(std::vector<Bucket> buckets, std::size_t fusion_bytes);

}  // namespace fdl
