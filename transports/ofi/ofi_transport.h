// The transport over libfabric: EFA, and any other provider with reliable messages and remote writes.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

// Connects this rank with every member whose entry in `peers` is set. All members call it; a provider, a version of
// libfabric or a number of devices that differs between members is an error that names both sides.
//
// The provider is that of FARANDOLE_TRANSPORT: "ofi" takes libfabric's first that reaches other hosts, "ofi:tcp" that
// one, "efa" is "ofi:efa". A peer that dies is reported by the coordinator; libfabric
// reports only what it cannot send.
Result<std::unique_ptr<Transport>> connect_ofi(const Membership& membership, const std::vector<bool>& peers);

// Returns the provider that a word of FARANDOLE_TRANSPORT names: "tcp" of "ofi:tcp", "efa" of "efa", none of "ofi".
std::string_view ofi_provider_in(std::string_view word);
bool is_ofi(std::string_view word);

}  // namespace fdl
