// The compact plan encoding replaces the names of tensors by the positions of their requests in the cache.
#pragma once

#include "agree/wire/request_cache.h"
#include "agree/wire/wire.h"

namespace fdl {

// Replaces the names and element counts of each bucket whose tensors are all in `cache` by positions. `cache` must
// already contain the requests that this message adds, so that the message can refer to them.
void shorten(PlanMessage& message, const RequestCache& cache);

// Restores names and element counts. Fails if a position is empty.
Status lengthen(PlanMessage& message, const RequestCache& cache);

}  // namespace fdl
