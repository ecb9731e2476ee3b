// Before the first packet all members compare their provider, their libfabric and the number of their devices.
#pragma once

#include <string>
#include <vector>

#include "contract/membership.h"
#include "transports/ofi/ofi_link.h"

namespace fdl {

// Publishes this rank's facts and addresses, or why it has none (`mine`; then `link` is null), compares them with those
// of all peers, and gives each rail the addresses of its peers. Ranks without a provider, and a difference, are errors
// that name these ranks, on all ranks alike.
Status agree_over_ofi(const Status& mine, const OfiLibrary* library, OfiLink* link, const Membership& membership,
                      const std::vector<bool>& peers);

// Tells the peers why this rank cannot go on after they have agreed. Peers that wait for it look there.
void publish_ofi_failure(const Membership& membership, const Status& why);
// Returns what a peer published there, or OK. Waits for one round trip.
Status fetch_ofi_failure(const Membership& membership, int member);

}  // namespace fdl
