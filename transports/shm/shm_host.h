// ShmHost is what the ranks of one host build on their shared segment: the collectives and the readiness flags.
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

// For a communicator whose members are all on one host, at most 64; UNSUPPORTED otherwise. Blocking, and collective
// over the members. Each rank contributes config.shm_bytes of shared memory.
Result<ShmHost> make_shm_host(const Membership& membership);
// The same without readiness flags.
Result<std::unique_ptr<Collectives>> make_shm_collectives(const Membership& membership);

}  // namespace fdl
