// The link probe measures the latency between the ranks of a communicator and the bandwidth of its links, and makes all
// ranks agree on the results.
#pragma once

#include "algorithms/choice/choose.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "contract/transport.h"

namespace fdl {

// Returns `shape` with the latency of the farthest pair (or the largest that any rank's shape already has) and, between
// hosts, the bandwidth of the slowest link around the ring. The call is collective, comes before any other use of the
// transport, and blocks for about as long as three messages and a small allreduce take.
Result<GroupShape> probe_links(Transport& transport, int rank, GroupShape shape, const Config& config,
                               Deadline deadline);

}  // namespace fdl
