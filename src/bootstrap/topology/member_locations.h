// This header gives each member the location of its host (bootstrap/topology/location.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contract/membership.h"

namespace fdl {

// Sets Member::location of all ranks of the world. `of_rank`: the location that each rank has found, empty if it is not
// known; that of a host is the one of its lowest rank. Returns Membership::locations: sorted, so that it is the same on
// all ranks. Null if no location is known.
std::shared_ptr<const std::vector<std::string>> assign_locations(std::vector<Member>& world,
                                                                 const std::vector<std::string>& of_rank);

// The line of the log with the first of the locations.
std::string line_of_locations(const std::vector<std::string>& locations);

// The warning if some hosts have a location and others have none; empty otherwise.
std::string warning_of_unknown_locations(std::span<const Member> world);

}  // namespace fdl
