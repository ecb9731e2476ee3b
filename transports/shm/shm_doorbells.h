// A rank sleeps on a doorbell, which the other ranks of its host ring.
//
// The first communicators of a process have a doorbell each; further ones share them. A doorbell is never cleared.
// Each communicator has it in an epoll set of its own that reports each ring once, so none takes a ring from another
// one. A ring wakes all communicators that share the doorbell and sleep; those that find nothing sleep on.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "system/event.h"

namespace fdl {

struct Doorbell {
  uint64_t id;  // random, so that a rank that receives it knows whether it has it already
  Event event;
};

// As many are not shared: threads that sleep in a few communicators do not wake each other.
inline constexpr std::size_t kDoorbellsOfOneCommunicator = 4;
// So many communicators share one. epoll limits how many nested sets lead to a descriptor (10 of five sets).
inline constexpr long kCommunicatorsOfADoorbell = 8;

// The doorbell for a further communicator of this process. From any thread.
Result<std::shared_ptr<const Doorbell>> take_doorbell();
// Returns the doorbell with this id that this process has already, or else makes one of the received descriptor.
std::shared_ptr<const Doorbell> keep_doorbell(uint64_t id, UniqueFd received);

}  // namespace fdl
