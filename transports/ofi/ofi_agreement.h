// Before the first packet all members compare their provider, their libfabric and the number of their devices.
#pragma once

#include <string>
#include <vector>

#include "contract/membership.h"
#include "transports/ofi/ofi_link.h"

namespace fdl {

// Publishes this rank's facts and addresses, compares them with those of all members, and gives each rail the addresses
// of its peers. A difference is an error that names both sides.
Status agree_over_ofi(const OfiLibrary& library, OfiLink& link, const Membership& membership,
                      const std::vector<bool>& peers);

}  // namespace fdl
