// mark_group_launches() chooses the neighbours in a plan that all ranks start in one group launch.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "agree/negotiation/message.h"

namespace fdl {

// Returns the request under a bucket's first name, or null if it is not cached.
using FindRequest = std::function<const Request*(const std::string& name)>;

// Sets `launch_with_next` on neighbours on devices that could not be fused, such as sums of two types or several
// allgathers, up to `most_bytes` of results in a row. alltoall, adasum and allgathers of unknown size are left out. All
// members of a group end together, so large buckets stay alone. The root decides, because all ranks must launch the
// same groups: the library may run the members of a group in any order.
void mark_group_launches(std::vector<Bucket>& buckets, std::size_t most_bytes, const FindRequest& find);

}  // namespace fdl
