// LivesWatch is one set with the liveness descriptors of the other ranks of a memory group. Communicators put the set
// into their own, so that the end of a process wakes all that sleep.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "system/fd.h"
#include "system/poller.h"
#include "transports/shm/rank_mask.h"

namespace fdl {

class LivesWatch {
 public:
  // Takes the descriptors by rank, as they were received; that of this rank is empty.
  static Result<std::shared_ptr<const LivesWatch>> make(std::vector<UniqueFd> lives);
  // Another set of the same descriptors, opened again.
  Result<std::shared_ptr<const LivesWatch>> another() const;

  // Readable from the first end on. A set that reports each readiness once (Poller::add_edges) reports each further
  // end.
  int fd() const { return poller_.fd(); }
  // The ranks whose processes have ended. From any thread; costs a system call.
  RankMask ended() const;

  // Whether all descriptors are of this process alone: epoll then counts the sets of no other process.
  bool is_private() const { return is_private_; }

 private:
  static Result<std::shared_ptr<const LivesWatch>> of(std::vector<UniqueFd> lives, bool is_private);
  LivesWatch(Poller poller, std::vector<UniqueFd> lives, bool is_private)
      : poller_(std::move(poller)), lives_(std::move(lives)), is_private_(is_private) {}

  Poller poller_;
  std::vector<UniqueFd> lives_;
  bool is_private_;
};

}  // namespace fdl
