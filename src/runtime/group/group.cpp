// Group names its members for error texts, and connects its named operations.
#include "runtime/group/group.h"

namespace fdl {
namespace {

// The first rank names all members in its decisions. The others name only themselves.
std::vector<std::string> rank_names(const std::vector<Member>& members, int rank) {
  std::vector<std::string> names(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (rank == 0 || rank == static_cast<int>(i)) names[i] = name_of(members[i]);
  }
  return names;
}

}  // namespace

Group::Group(std::string id, int rank, const Members& members, std::unique_ptr<Communicator> comm, const Config& config,
             std::shared_ptr<HostMemory> memory, OrderTuning tuning, std::shared_ptr<LaunchTurns> turns)
    : id_(std::move(id)),
      rank_(rank),
      members_(members),
      comm_(std::move(comm)),
      named_(*comm_, config, rank_names(members_, rank_), std::move(memory), std::move(tuning), std::move(turns)) {}

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
