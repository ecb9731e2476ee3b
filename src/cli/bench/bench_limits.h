// Limits measures what the machine itself reaches in the same run: concurrent memcpy, and a bare socket.
#pragma once

#include <cstddef>

#include "farandole/farandole.h"

namespace fdl {

// GB/s that this rank copies while all ranks of the communicator copy at once, cold buffers. Collective.
double copy_bandwidth(fdl_comm* comm);

// Seconds (the median) of exchanging `bytes` in both directions at once over one bare loopback TCP connection between
// ranks 0 and 1, one thread each; 0 on the others. Collective.
double bare_exchange_s(fdl_comm* comm, std::size_t bytes);

}  // namespace fdl
