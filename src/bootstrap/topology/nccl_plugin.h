// This header reports which network plugin NCCL finds. Without one its bytes between hosts go over sockets or
// InfiniBand verbs; over EFA they go by AWS's plugin alone (aws-ofi-nccl), whatever devices the host has.
#pragma once

#include <string>

#include "base/config.h"

namespace fdl {

struct NcclPlugin {
  std::string path;  // of the library; empty: there is none
  std::string why;   // then the reason
};

// Looks for the plugin in the way that NCCL documents: the library or the suffix in NCCL_NET_PLUGIN (several, separated
// by commas, in turn; "none" means none), else libnccl-net.so. It loads the library and closes it again.
NcclPlugin find_nccl_plugin(const Environment& environment);

}  // namespace fdl
