// Membership: how errors name a member.
#include "contract/membership.h"

#include <fmt/format.h>

namespace fdl {

std::string Membership::name_of(int member) const {
  const Member& who = members[static_cast<std::size_t>(member)];
  if (who.host_name.empty()) return fmt::format("rank {}", who.world_rank);
  return fmt::format("rank {} ({})", who.world_rank, who.host_name);
}

}  // namespace fdl
