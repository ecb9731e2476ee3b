// Link probe: how far the ranks of a communicator are from each other and what its links carry, as all of them agree.
#pragma once

#include "algorithms/choice/choose.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "contract/transport.h"

namespace fdl {

// `shape` with the latency of the farthest pair (or the largest that any rank's shape says already) and, between
// hosts, the bandwidth of the slowest link around the ring. Collective, before anything else uses the transport; blocks
// for about as long as three messages and a small allreduce take.
Result<GroupShape> probe_links(Transport& transport, int rank, GroupShape shape, const Config& config,
                               Deadline deadline);

}  // namespace fdl
