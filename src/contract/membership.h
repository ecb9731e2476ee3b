// Membership: who the ranks of a communicator are, and how they exchange small facts while it is being set up.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "contract/host_memory.h"

namespace fdl {

struct Member {
  int world_rank = 0;
  // Ranks with equal host_id were seen to map the same memory (tried at start, not guessed from names).
  std::string host_id;
  std::string host_name;  // for people
  int process_id = 0;
  int numa_node = -1;  // of its host, the one to which it was bound at start; -1: to none alone
};

// Small facts, each published once under a name that is unique within the communicator's set-up. Blocking; used only
// while a communicator is set up, never in a collective.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual Status publish(std::string_view key, std::string_view value) = 0;
  // Waits until some member has published `key`.
  virtual Result<std::string> fetch(std::string_view key, Deadline deadline) = 0;
};

// Everything that a transport needs in order to connect one communicator. References outlive the set-up call.
struct Membership {
  std::string id;  // of the communicator: the same on all members and never used twice in a job
  int rank = 0;    // mine, in `members`
  std::vector<Member> members;
  std::string job_key;
  const Config* config = nullptr;
  std::shared_ptr<HostMemory> memory;  // of my host's ranks in this job; null where they have none
  Exchange* exchange = nullptr;
  Deadline deadline = Deadline::never();

  int size() const { return static_cast<int>(members.size()); }
  const Member& me() const { return members[static_cast<std::size_t>(rank)]; }
  // "rank 3 (host-b)": how errors name a member, by its world rank.
  std::string name_of(int member) const;
};

}  // namespace fdl
