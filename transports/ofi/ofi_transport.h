// The transport over libfabric: EFA, and any other provider with reliable messages and remote writes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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
// one, "efa" is "ofi:efa", "ofi:efa-direct" its other fabric. A peer that dies is reported by the coordinator;
// libfabric reports only what it cannot send.
Result<std::unique_ptr<Transport>> connect_ofi(const Membership& membership, const std::vector<bool>& peers);

// What libfabric offers to this process. Opens it.
struct OfiDescription {
  bool is_there = false;
  std::string library;    // "libfabric 1.17 (/usr/lib/libfabric.so.1)", or why there is none
  std::string providers;  // those that fit, with their devices
  Status efa;             // OK if the provider efa can be used
};
OfiDescription describe_ofi(const Config& config);

// Bytes that this process has given to libfabric, in packets and writes.
uint64_t bytes_over_ofi();

// Returns the provider that a word of FARANDOLE_TRANSPORT names: "tcp" of "ofi:tcp", "efa" of "efa", none of "ofi".
std::string_view ofi_provider_in(std::string_view word);
bool is_ofi(std::string_view word);

}  // namespace fdl
