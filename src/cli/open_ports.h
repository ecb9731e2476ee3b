// This header says which TCP ports a rank opens, for how long and for what.
#pragma once

#include <string>

#include "base/config.h"

namespace fdl {

// "none: ...", or one part for each kind of port, with semicolons between. Of a process that no launcher has started it
// describes a job on several hosts.
std::string describe_ports(const Config& config, const Environment& environment);

}  // namespace fdl
