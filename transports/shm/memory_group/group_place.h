// GroupPlace is one member's part in a communicator of a memory group: it meets the others in a record of the arena,
// confirms, and detaches at its end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transports/shm/memory_group/memory_group.h"

namespace fdl {

class GroupPlace {
 public:
  struct Facts {
    std::string id;  // of the communicator
    Members members;
    std::vector<int> group_of;  // by member: its rank in the group
    Arena::Key key{};
    std::size_t bytes = 0;
  };
  static Result<std::shared_ptr<GroupPlace>> make(std::shared_ptr<MemoryGroup> group, Facts facts);
  // Closes the set-up if it is still open, and detaches from the range. A forked child leaves both to its parent.
  ~GroupPlace();

  // Blocking until all members have come to the record. A failure of another member is a TRANSPORT or PEER_LOST error
  // that names it, after the news of the coordinator had time to come, which have the reason. Members that do not come
  // in time are a TIMEOUT error, with the same names on all members that have come; a late one gets it too.
  Status meet(Deadline deadline);
  // After meet(): the members meet over sockets instead.
  bool is_over_sockets() const { return over_sockets_; }
  // After meet(): the range of the communicator in the segment.
  std::size_t offset() const { return group_->arena().offset_of(chunks_.first); }
  std::size_t bytes() const { return facts_.bytes; }
  const std::shared_ptr<MemoryGroup>& group() const { return group_; }

  // What the communicator sleeps on, and what wakes its members, by member. Valid after meet().
  std::shared_ptr<const LivesWatch> lives() const;
  std::vector<std::shared_ptr<const Doorbell>> doorbells() const;

  // Completes the set-up. Blocking: OK on all members once all have confirmed, or an error on all of them.
  Status confirm(Deadline deadline);

 private:
  GroupPlace(std::shared_ptr<MemoryGroup> group, Facts facts, std::unique_ptr<SetUpWait> wait);

  int first() const { return facts_.group_of.front(); }  // the rank in the group of the first member
  int mine() const { return group_->rank(); }
  bool is_first() const { return first() == mine(); }
  Status announce();
  Status find_and_come(Deadline deadline);
  bool all_have(uint64_t flags) const;
  // The error if another member has ended, has closed the set-up, or has not come in time.
  Status failure(Deadline deadline, Arena::Flag awaited) const;
  Status ended_error(RankMask ended) const;
  Status closed_error(const Arena::Record& record) const;
  // Closes the set-up because of the members that are late. OK if none is, or if the communicator is made.
  Status close_without_late(Arena::Flag awaited) const;
  Status late_error(const Arena::Late& late) const;
  // Returns the failure, after the news of its reason had time to come.
  Status with_news(Deadline deadline, Status failure) const;
  const Member& member_of(int group_rank) const;

  const std::shared_ptr<MemoryGroup> group_;
  const Facts facts_;
  RankMask members_ = 0;             // ranks in the group
  const int creator_;                // process id
  std::unique_ptr<SetUpWait> wait_;  // null once the communicator is made
  std::optional<MemoryGroup::Load> load_;
  std::optional<Arena::Record> record_;  // once this member has come
  Arena::Chunks chunks_;
  bool over_sockets_ = false;
};

}  // namespace fdl
