// fuse() combines small allreduces of the same type and scales into shared buckets.
#pragma once

#include <cstddef>
#include <vector>

#include "agree/negotiation/message.h"

namespace fdl {

// Combines buckets of one tensor each into buckets of several: allreduces without error that share dtype, op, scales
// and device, up to `fusion_bytes`. Tensors are placed in order, each into the first bucket that it matches and fits.
// The order is kept within a bucket; buckets are ordered by their first tensors. A larger tensor stays alone. 0 fuses
// nothing.
std::vector<Bucket> fuse(std::vector<Bucket> buckets, std::size_t fusion_bytes);

}  // namespace fdl
