// GroupOfRanks holds a memory group whose ranks are threads, or processes that are forked after it was made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/collectives_by_hand.h"
#include "tests/support/participant.h"
#include "transports/shm/memory_group/group_place.h"
#include "transports/shm/shm_host.h"

namespace fdl::test {

class GroupOfRanks {
 public:
  explicit GroupOfRanks(int size) : participant_(size), groups_(static_cast<std::size_t>(size)) {
    participant_.config() = require(Config::read(Environment({}), {{"shm_bytes", "64K"}}));
  }

  int size() const { return participant_.size(); }
  Participant& participant() { return participant_; }
  // Each rank meets the others once.
  void meet(int rank) { of(rank) = require(meet_memory_group(participant_.membership(rank))); }
  void meet() {
    run_ranks(size(), [&](int rank) { meet(rank); });
  }
  std::shared_ptr<MemoryGroup>& of(int rank) { return groups_[static_cast<std::size_t>(rank)]; }

  // The membership of a communicator of these ranks, which `rank` is one of.
  Membership membership(int rank, const std::vector<int>& members, const std::string& id,
                        Deadline deadline = Deadline::after_seconds(kTimeoutSeconds)) {
    Membership membership = participant_.membership(rank, deadline);
    membership.id = participant_.id() + " " + id;
    std::vector<Member> all = membership.members;
    membership.members.edit().clear();
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank) membership.rank = static_cast<int>(i);
      membership.members.edit().push_back(all[static_cast<std::size_t>(members[i])]);
    }
    membership.memory_group = of(rank);
    return membership;
  }

  // A communicator without its confirmation. Fails with the error of the set-up.
  Result<ShmHost> join(int rank, const std::vector<int>& members, const std::string& id,
                       Deadline deadline = Deadline::after_seconds(kTimeoutSeconds)) {
    return connect_shm_host(membership(rank, members, id, deadline), std::vector<bool>(members.size(), true));
  }
  Result<ShmHost> make(int rank, const std::vector<int>& members, const std::string& id,
                       Deadline deadline = Deadline::after_seconds(kTimeoutSeconds)) {
    auto host = join(rank, members, id, deadline);
    if (!host.ok() || !host->confirm) return host;
    FDL_RETURN_IF_ERROR(std::exchange(host->confirm, nullptr)(deadline));
    return host;
  }

  // Chunks that no communicator has, as any rank sees them.
  bool all_are_free() {
    const Arena& arena = of(0)->arena();
    return arena.free_chunks() == arena.chunk_count();
  }

 private:
  Participant participant_;
  std::vector<std::shared_ptr<MemoryGroup>> groups_;
};

inline Status sum(ShmHost& host, std::vector<float>& values) {
  CollectiveSpec spec;
  spec.count = values.size();
  return call(*host.collectives, spec, {values.data(), values.data()});
}

// Sums in a way that a wrong or unclean range would change: small and large vectors, and each rank's own value.
inline void check_sums(ShmHost& host, int rank, const std::vector<int>& members, int factor) {
  int expected = 0;
  for (const int member : members) expected += (member + 1) * factor;
  for (const std::size_t count : {std::size_t{1}, std::size_t{600}, std::size_t{30000}}) {
    std::vector<float> values(count, static_cast<float>((rank + 1) * factor));
    require(sum(host, values));
    for (const float value : values) require(value == static_cast<float>(expected), "a sum is wrong");
  }
}

}  // namespace fdl::test
