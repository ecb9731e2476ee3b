// Membership formats the name of a member for errors.
#include "contract/membership.h"

#include <fmt/format.h>

namespace fdl {

std::string name_of(const Member& member) {
  if (member.host_name.empty()) return fmt::format("rank {}", member.world_rank);
  return fmt::format("rank {} ({})", member.world_rank, member.host_name);
}

std::string Membership::name_of(int member) const { return fdl::name_of(members[static_cast<std::size_t>(member)]); }

}  // namespace fdl
