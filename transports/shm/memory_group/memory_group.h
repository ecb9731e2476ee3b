// MemoryGroup is what the ranks of one memory group exchange when their world starts: an arena, a few doorbells of each
// rank, and a liveness descriptor of each. Their communicators are then made in the arena, without a message.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "contract/membership.h"
#include "transports/shm/memory_group/arena.h"
#include "transports/shm/memory_group/lives_watch.h"
#include "transports/shm/memory_group/set_up_wait.h"
#include "transports/shm/shm_segment.h"

namespace fdl {

class GroupPlace;

// epoll limits the nested sets that lead to one open file (100 of three sets, 50 of four). So many communicators share
// a doorbell, and as many a liveness set.
inline constexpr int kCommunicatorsOfAGroupDoorbell = 40;
// Each rank has so many doorbells: fewer where each process holds those of many ranks.
constexpr int doorbells_of(int ranks) { return ranks <= 16 ? 4 : 2; }

// A member's share of a communicator that was made in the arena. Without a share the members meet over sockets; `place`
// must live until they have met.
struct GroupShare {
  std::optional<ShmShare> share;
  std::shared_ptr<GroupPlace> place;
};

// From any thread. A communicator keeps its memory group.
class MemoryGroup : public std::enable_shared_from_this<MemoryGroup> {
 public:
  // Blocking, and collective over the members of `world` in this rank's memory group, at least two. `bytes_of_all`:
  // what a communicator of all of them needs. Null on all of them if they cannot have it; if that is unexpected, one
  // line in the log gives the reason.
  static Result<std::shared_ptr<MemoryGroup>> meet(const Membership& world, std::size_t bytes_of_all);
  ~MemoryGroup();

  // Whether all members of the communicator are in the group. The same on all of them.
  bool has_all(const Membership& membership) const;
  // Makes a communicator of `bytes` whose members are all in the group. Blocking until all have come, and collective
  // over them. Each then completes it with GroupPlace::confirm().
  Result<GroupShare> join(const Membership& membership, std::string_view purpose, std::size_t bytes);

  const Arena& arena() const { return arena_; }
  int rank() const { return rank_; }
  int segment_fd() const { return segment_->fd(); }

 private:
  friend class GroupPlace;

  // What a communicator of this rank sleeps on.
  struct Load {
    int doorbell = 0;
    std::size_t watch = 0;
  };
  struct Watch {
    std::shared_ptr<const LivesWatch> lives;
    int load = 0;
  };
  // A record of this rank, as it announced it: nothing of this is read from the arena.
  struct Own {
    bool is_used = false;
    Arena::Record record;
    RankMask members = 0;
    Arena::Chunks chunks;
  };

  MemoryGroup(GroupMeeting met, int rank, std::vector<int> world_ranks);

  std::optional<Load> take_load();
  void give_back(const Load& load);
  Result<Arena::Record> announce(const Arena::Key& key, RankMask members, std::size_t bytes,
                                 const std::optional<Load>& load, Arena::Chunks& chunks);
  std::optional<uint32_t> free_record() FDL_REQUIRES(mutex_);
  void collect_ended() FDL_REQUIRES(mutex_);
  Status back_record(uint32_t index) FDL_REQUIRES(mutex_);
  // Frees the record and its range if this was the last member.
  void retire(const Arena::Record& record, RankMask members, Arena::Chunks chunks);
  // Of a record that this member has retired.
  void release(const Arena::Record& record, Arena::Chunks chunks);
  // Rings those of `members` that wait in a set-up.
  void ring(RankMask members) const;

  const std::shared_ptr<SharedSegment> segment_;
  const int rank_;                                                             // in the group
  const std::vector<int> world_ranks_;                                         // of the group, in order
  const std::vector<std::vector<std::shared_ptr<const Doorbell>>> doorbells_;  // by rank
  const UniqueFd own_life_;
  mutable Arena arena_;
  std::unique_ptr<SetUpWaits> waits_;

  Mutex mutex_;
  std::vector<int> doorbell_loads_ FDL_GUARDED_BY(mutex_);
  std::vector<Watch> watches_ FDL_GUARDED_BY(mutex_);
  std::vector<Own> own_ FDL_GUARDED_BY(mutex_);
  std::size_t backed_ FDL_GUARDED_BY(mutex_) = 0;  // bytes of this rank's table of records
};

}  // namespace fdl
