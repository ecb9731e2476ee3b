// This header says which TCP ports a rank opens, for how long and for what.
#pragma once

#include <string>

#include "base/config.h"

namespace fdl {

// How the ranks of a world have found the coordinator.
struct MeetingFacts {
  bool on_one_host = false;
  bool by_service = false;  // the launcher's own service, or the program, has passed the address on
};

// Returns why such a world keeps no listener for the survivors of a loss (fdl_world_shrink); empty if it keeps one.
std::string why_no_recovery(const Config& config, const Environment& environment, const MeetingFacts& facts);

// "none: ...", or one part for each kind of port, with semicolons between. Of a process that no launcher has started it
// describes a job on several hosts.
std::string describe_ports(const Config& config, const Environment& environment);

}  // namespace fdl
