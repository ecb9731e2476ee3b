// A liveness descriptor becomes readable once a process of this host has ended. Each rank gives one to the others.
//
// A process gets one of each other rank for each communicator. It keeps one of them for all, so that a communicator
// costs no such descriptor.
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

// The liveness descriptors of one communicator. Ranks that are threads of one process have one each.
class SharedLives {
 public:
  // Returns the descriptor that this process has for the same process already, or else this one.
  std::shared_ptr<const UniqueFd> share(UniqueFd received);

 private:
  std::set<int> processes_;
};

}  // namespace fdl
