// ShmHost is what the ranks of one host build on their shared segment: the transport, the collectives and the readiness
// flags. All of them sleep on one doorbell and watch the other processes by the same descriptors.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "contract/collectives.h"
#include "contract/membership.h"
#include "contract/readiness_flags.h"
#include "contract/transport.h"

namespace fdl {

struct ShmHost {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<ReadinessFlags> readiness_flags;
  // Of a communicator that was made in the memory of its memory group, else empty: see Communicator::Parts::confirm.
  std::function<Status(Deadline)> confirm;
};

// Exchanges what communicators of this rank's memory group are made in. Blocking, and collective over its members; null
// on all of them if they cannot have it. See memory_group/memory_group.h.
Result<std::shared_ptr<MemoryGroup>> meet_memory_group(const Membership& world);

// Joins this rank and the members for which `peers` is true; the entry of this rank is not read. All of them are on its
// host, at most 64, and all join each other. Blocking, and collective over them. Each rank contributes config.shm_bytes
// of shared memory for the transport and as much for the collectives.
Result<ShmHost> connect_shm_host(const Membership& membership, const std::vector<bool>& peers);
// The transport alone.
Result<std::unique_ptr<Transport>> connect_shm(const Membership& membership, const std::vector<bool>& peers);

// The collectives and readiness flags alone, of a communicator whose members are all on one host; UNSUPPORTED
// otherwise.
Result<ShmHost> make_shm_host(const Membership& membership);
// The same without readiness flags.
Result<std::unique_ptr<Collectives>> make_shm_collectives(const Membership& membership);

}  // namespace fdl
