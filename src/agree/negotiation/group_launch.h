// Together: which neighbours in a plan all ranks begin as one, because whoever runs them can do so in one launch.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "agree/negotiation/message.h"

namespace fdl {

// The request that stands behind a bucket's first name, or null where it is not known.
using FindRequest = std::function<const Request*(const std::string& name)>;

// Sets `launch_with_next`: neighbours on devices that could not be fused, such as sums of two types or several
// gatherings, up to `most_bytes` of results in a row. (Exchanges of all with all are left out, and so is what is not
// known to be small.) None of them ends before the last: so what is large stays alone. All ranks must launch the same
// ones together, since who runs them may order what is launched at once as he likes; that is why the root says which.
void begin_group(std::vector<Bucket>& buckets, std::size_t most_bytes, const FindRequest& find);

}  // namespace fdl
