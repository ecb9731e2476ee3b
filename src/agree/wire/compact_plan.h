// CompactPlan: a plan that names the tensors of its buckets by where their requests stand in the cache.
#pragma once

#include "agree/wire/request_cache.h"
#include "agree/wire/wire.h"

namespace fdl {

// Replaces names and element counts of `message`'s buckets by positions, bucket by bucket, where `cache` knows all of a
// bucket. `cache` is as the message leaves it: what it adds can be referred to already.
void shorten(PlanMessage& message, const RequestCache& cache);

// The reverse. Refuses a position where nothing stands.
Status lengthen(PlanMessage& message, const RequestCache& cache);

}  // namespace fdl
