// Shared-memory collectives: whole collectives on one host, every rank reading its neighbours' slots directly.
#pragma once

#include <memory>

#include "contract/collectives.h"
#include "contract/membership.h"
#include "contract/readiness_board.h"

namespace fdl {

// For a communicator whose members are all on one host (UNSUPPORTED otherwise), at most 64. Blocking, collective over
// the members. Each rank contributes config.shm_bytes of shared memory.
//
// Operations that do not go at once need no staging where buffers that others read or write are membership.memory's.
// Bits: each element is folded in rank order, whatever the size, the steps and the memory.
// Ranks that call different collectives get an error that names two of them and what each called.
Result<std::unique_ptr<Collectives>> make_shm_collectives(const Membership& membership);

// The same, and a board in the same segment.
struct ShmHost {
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<ReadinessBoard> board;
};
Result<ShmHost> make_shm_host(const Membership& membership);

}  // namespace fdl
