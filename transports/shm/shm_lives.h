// A liveness descriptor becomes readable once a process of this host has ended. Each rank gives one to the others.
//
// A process receives one of each other rank for each communicator, and keeps one of them for several communicators.
#pragma once

#include <memory>
#include <set>

#include "base/status.h"
#include "system/fd.h"

namespace fdl {

struct Liveness {
  UniqueFd watched;  // given to the other ranks; readable once this process has ended
  UniqueFd kept;     // stays open until this process ends; empty for a pidfd
};
Result<Liveness> make_liveness();

// Opens the process of a pidfd again, as a file of this process alone. Empty for another kind of descriptor, a process
// of another namespace, or one that has ended.
UniqueFd reopen_pidfd(int life);

// So many communicators share a descriptor. Each puts it into a set of its own that is nested in further sets, and
// epoll refuses a descriptor to which too many such paths lead (10 of five sets, 50 of four).
inline constexpr long kCommunicatorsOfALife = 8;

// The liveness descriptors of one communicator. Ranks that are threads of one process have one each.
class SharedLives {
 public:
  // Returns the descriptor that this process has for the same process already, or else this one.
  std::shared_ptr<const UniqueFd> share(UniqueFd received);

 private:
  std::set<uint64_t> processes_;
};

}  // namespace fdl
