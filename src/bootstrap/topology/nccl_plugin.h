// This header reports which network plugin NCCL finds. Without one its bytes between hosts go over sockets or
// InfiniBand verbs; over EFA they go by AWS's plugin alone (aws-ofi-nccl), whatever devices the host has.
#pragma once

#include <string>

#include "base/config.h"

namespace fdl {

struct NcclPlugin {
  std::string path;     // of the library; empty: there is none
  std::string why;      // then the reason
  bool is_off = false;  // the user wants none: NCCL_NET_PLUGIN=none
};

// What to do where a host has EFA and NCCL finds no plugin.
inline constexpr char kNcclPluginRemedy[] =
    "install aws-ofi-nccl, which AWS's EFA installer has, and add its folder to LD_LIBRARY_PATH or name the library in "
    "NCCL_NET_PLUGIN";

// Looks for the plugin in the way that NCCL documents: the library or the suffix in NCCL_NET_PLUGIN (several, separated
// by commas, in turn; "none" means none), else libnccl-net.so. It loads the library and closes it again.
NcclPlugin find_nccl_plugin(const Environment& environment);

}  // namespace fdl
