// Group names its members for error texts, and connects its named operations.
#include "runtime/lifecycle/group.h"

namespace fdl {
namespace {

std::vector<std::string> rank_names(const std::vector<Member>& members) {
  std::vector<std::string> names;
  for (const Member& member : members) names.push_back(name_of(member));
  return names;
}

}  // namespace

Group::Group(std::string id, int rank, std::vector<Member> members, std::unique_ptr<Communicator> comm,
             const Config& config, std::shared_ptr<HostMemory> memory, OrderTuning tuning)
    : id_(std::move(id)),
      rank_(rank),
      members_(std::move(members)),
      comm_(std::move(comm)),
      named_(*comm_, config, rank_names(members_), std::move(memory), std::move(tuning)) {}

int Group::rank_of(int world_rank) const {
  for (int rank = 0; rank < size(); ++rank) {
    if (members_[static_cast<std::size_t>(rank)].world_rank == world_rank) return rank;
  }
  return -1;
}

}  // namespace fdl
