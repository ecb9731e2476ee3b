// ShmShare: what the members of one host share: one nameless segment, a doorbell each, and a sign of life each.
//
// The lowest member creates the segment and listens on an abstract Unix socket; the others prove the job's key there,
// hand in their doorbell and sign of life, and get everybody's. Nothing of it has a name in a file system, so nothing
// can be left behind. Ranks may be processes or threads of one process.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "contract/membership.h"
#include "system/event.h"
#include "system/shared_segment.h"

namespace fdl {

// Who waits for whom is a word with one bit a rank.
inline constexpr int kMaxShmRanks = 64;

struct ShmShare {
  std::vector<Member> members;  // of this host, by index
  int index = 0;                // mine in members
  std::shared_ptr<SharedSegment> segment;
  std::vector<Event> doorbells;  // by index; mine is the one that I sleep on
  std::vector<UniqueFd> lives;   // by index: readable once that process has ended; mine is empty
  UniqueFd own_life;  // what others see close when I end (empty where the kernel tells of the process itself)
};

// FARANDOLE_SHM_BYTES asks for more than any host has.
Status too_much_memory(std::size_t bytes_of_rank, std::size_t ranks);

// How large the segment must be is the leader's word: the others map what they get.
// `purpose` tells several segments of one communicator apart ("collectives"). Blocking, bounded by the membership's
// deadline, after which the error names who is missing.
Result<ShmShare> share_segment(const Membership& membership, const std::vector<int>& members, std::string_view purpose,
                               std::size_t bytes);

// The leader's sparse segment of `bytes`, and nothing beside it. All members get it or none does, and all the same
// error. A member that cannot have it gives a RESOURCE or UNSUPPORTED one.
Result<std::shared_ptr<SharedSegment>> share_sparse(const Membership& membership, const std::vector<int>& members,
                                                    std::string_view purpose, std::size_t bytes);

// The indices of `membership` that are on my host, me included.
std::vector<int> members_of_my_host(const Membership& membership);

}  // namespace fdl
