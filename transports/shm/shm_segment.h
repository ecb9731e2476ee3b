// ShmShare is what the members of one host share: one unnamed segment, and of each member a doorbell and a liveness
// descriptor.
//
// The lowest member is the leader: it creates the segment and listens on an abstract Unix socket. The others prove the
// job's key there, hand in their doorbell and liveness descriptor, and receive those of all members. Nothing has a name
// in a file system, so nothing is left behind. Ranks may be processes or threads of one process.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "contract/membership.h"
#include "system/shared_segment.h"
#include "transports/shm/shm_doorbells.h"
#include "transports/shm/shm_lives.h"

namespace fdl {

class GroupPlace;
class LivesWatch;

// A rank's sleep word has one bit per rank.
inline constexpr int kMaxShmRanks = kRanksPerMemoryGroup;

struct ShmShare {
  std::vector<Member> members;  // of this host, by index
  int index = 0;                // of this rank in members
  std::shared_ptr<SharedSegment> segment;
  // The part of the segment that is theirs.
  std::size_t offset = 0;
  std::size_t bytes = 0;
  std::vector<std::shared_ptr<const Doorbell>> doorbells;  // by index; this rank sleeps on its own
  // Liveness descriptors by index, readable once that process has ended; own: null. See shm_lives.h.
  std::vector<std::shared_ptr<const UniqueFd>> lives;
  UniqueFd own_life;  // closes with this process, which the others see; empty with pidfds

  // Of a communicator of a memory group, instead of `lives`: the liveness set of the group, the rank in the group by
  // index, and what the range ends with.
  std::shared_ptr<const LivesWatch> group_lives;
  std::vector<int> group_of;
  std::shared_ptr<GroupPlace> place;

  Bytes memory() const { return segment->bytes().subspan(offset, bytes); }
};

// The error for a FARANDOLE_SHM_BYTES that is larger than any host's memory.
Status too_much_memory(std::size_t bytes_of_rank, std::size_t ranks);

// Blocking, bounded by the membership's deadline; a timeout names the missing ranks. `bytes` is read from the leader
// alone: the others map what they receive. `purpose` ("collectives") tells the segments of one communicator. Nothing of
// the segment is backed by memory yet.
Result<ShmShare> share_segment(const Membership& membership, const std::vector<int>& members, std::string_view purpose,
                               std::size_t bytes);

// Shares a sparse segment of `bytes` that the leader creates, without doorbells. Either all members get it, or all fail
// with one error, which is RESOURCE or UNSUPPORTED if a member cannot map it.
Result<std::shared_ptr<SharedSegment>> share_sparse(const Membership& membership, const std::vector<int>& members,
                                                    std::string_view purpose, std::size_t bytes);

// What the ranks of a memory group exchange when their world starts.
struct GroupMeeting {
  std::shared_ptr<SharedSegment> segment;
  std::vector<std::vector<std::shared_ptr<const Doorbell>>> doorbells;  // by rank
  std::shared_ptr<const LivesWatch> lives;                              // of the other ranks
  UniqueFd own_life;                                                    // as in ShmShare
};
// Shares a sparse segment of `bytes`, of which the first `backed_bytes` are backed, and so many doorbells of each rank.
// All members get it or all fail, as with share_sparse().
Result<GroupMeeting> meet_group(const Membership& membership, const std::vector<int>& members, std::size_t bytes,
                                std::size_t backed_bytes, int doorbells);

// The ranks of `membership` in this rank's memory group, in order, this rank included.
std::vector<int> members_of_my_memory_group(const Membership& membership);

}  // namespace fdl
