// A group is a communicator and its named operations.
#include "runtime/group/group.h"

namespace fdl {

Group::Group(std::string id, int rank, const Members& members, std::unique_ptr<Communicator> comm, const Config& config,
             std::shared_ptr<HostMemory> memory, OrderTuning tuning, std::shared_ptr<LaunchTurns> turns)
    : id_(std::move(id)),
      rank_(rank),
      members_(members),
      comm_(std::move(comm)),
      named_(*comm_, config, std::move(memory), std::move(tuning), std::move(turns)) {}

int Group::rank_of(int world_rank) const {
  // In the group of all ranks, each has its place in the world.
  if (world_rank >= 0 && world_rank < size() &&
      members_[static_cast<std::size_t>(world_rank)].world_rank == world_rank) {
    return world_rank;
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (members_[static_cast<std::size_t>(rank)].world_rank == world_rank) return rank;
  }
  return -1;
}

}  // namespace fdl
