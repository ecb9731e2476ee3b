// One host's shared memory: the segment that its ranks make together, and what lives in it.
#pragma once

#include <memory>

#include "contract/collectives.h"
#include "contract/membership.h"
#include "contract/readiness_flags.h"

namespace fdl {

struct ShmHost {
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<ReadinessFlags> readiness_flags;
};

// For a communicator whose members are all on one host (UNSUPPORTED otherwise), at most 64. Blocking, collective over
// the members. Each rank contributes config.shm_bytes of shared memory.
Result<ShmHost> make_shm_host(const Membership& membership);
Result<std::unique_ptr<Collectives>> make_shm_collectives(const Membership& membership);

}  // namespace fdl
