// This header finds where this host is in the network.
//
// A location is the list of the groups of hosts that contain a host, from the widest to the narrowest, separated by /:
// "zone-a/rack-3". Hosts with one location are neighbours. A wrong location costs speed and never results.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/config.h"
#include "base/status.h"

namespace fdl {

inline constexpr std::size_t kMostLocationNames = 8;
inline constexpr std::size_t kMostLocationName = 128;  // bytes
// The limit of a whole location, in bytes.
inline constexpr std::size_t kMostLocation = kMostLocationNames * (kMostLocationName + 1) - 1;

// Names of hosts and of groups of hosts have these characters only.
inline bool is_printable(char c) { return c > ' ' && c <= '~'; }

struct HostLocation {
  std::string path;    // "zone-a/rack-3"; empty: not known
  std::string source;  // where it was read, "FARANDOLE_LOCATION"; or if it is not known, why
};

// Returns the location of this host, from the first of these that is set:
//   1. FARANDOLE_LOCATION
//   2. FARANDOLE_TOPOLOGY, a file (bootstrap/topology/topology_file.h). A host that it does not list has no location.
//   3. SLURM_TOPOLOGY_ADDR and SLURM_TOPOLOGY_ADDR_PATTERN, in a task or a batch script of Slurm
// FARANDOLE_TOPOLOGY=off ignores all of them. A location or a file that is not valid is an error of this rank. Slurm's
// variables, which the user did not write, are ignored if they are not valid.
Result<HostLocation> find_location(const Environment& environment, const Config& config, std::string_view host_name);

// "zone-a/rack-3 (from SLURM_TOPOLOGY_ADDR)", "not known (set ...)", or the text of the error.
std::string describe_location(const Result<HostLocation>& location);

// Returns the location that a text describes, without empty names at its end: a manifest composes the text of labels,
// and a missing label is empty. The result is empty if all names are. The error quotes the text and gives no remedy.
Result<std::string> parse_location(std::string_view text);

}  // namespace fdl
