// Membership formats the name of a member for errors.
#include "contract/membership.h"

#include <fmt/format.h>

namespace fdl {

std::string Membership::name_of(int member) const {
  const Member& named = members[static_cast<std::size_t>(member)];
  if (named.host_name.empty()) return fmt::format("rank {}", named.world_rank);
  return fmt::format("rank {} ({})", named.world_rank, named.host_name);
}

}  // namespace fdl
