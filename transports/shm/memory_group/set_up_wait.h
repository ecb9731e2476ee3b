// SetUpWait sleeps in the set-up of a communicator until another member acts, a process ends, or the deadline passes.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "system/poller.h"
#include "transports/shm/memory_group/arena.h"
#include "transports/shm/memory_group/lives_watch.h"
#include "transports/shm/shm_doorbells.h"

namespace fdl {

class SetUpWait;

// The sets in which the threads of one rank wait. It outlives them.
class SetUpWaits {
 public:
  SetUpWaits(const Arena& arena, int rank, std::shared_ptr<const Doorbell> doorbell,
             std::shared_ptr<const LivesWatch> lives)
      : arena_(arena), rank_(rank), doorbell_(std::move(doorbell)), lives_(std::move(lives)) {}

  // From any thread. A member has a SetUpWait before others can count on it: it needs no descriptor later.
  Result<std::unique_ptr<SetUpWait>> begin();

 private:
  friend class SetUpWait;
  Result<Poller> take();
  void keep(Poller poller);

  Arena arena_;
  const int rank_;
  const std::shared_ptr<const Doorbell> doorbell_;
  const std::shared_ptr<const LivesWatch> lives_;
  std::atomic<RankMask> ended_{0};
  Mutex mutex_;
  std::vector<Poller> idle_ FDL_GUARDED_BY(mutex_);
};

// Each has a set of its own, so that threads in several set-ups do not take each other's rings. While it lives, other
// ranks ring the doorbell when they change a record.
class SetUpWait {
 public:
  ~SetUpWait();
  SetUpWait(const SetUpWait&) = delete;
  SetUpWait& operator=(const SetUpWait&) = delete;

  // Returns after a ring, the end of a process, or the deadline. A ring after the caller has looked is not lost; one
  // before may end the first sleep.
  void sleep(Deadline deadline);
  // The ranks whose processes have ended, as of the last sleep of any thread.
  RankMask ended() const { return all_.ended_.load(); }

 private:
  friend class SetUpWaits;
  SetUpWait(SetUpWaits& all, Poller poller);

  SetUpWaits& all_;
  Poller poller_;
};

}  // namespace fdl
