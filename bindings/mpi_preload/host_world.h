// HostWorld is farandole's world of the ranks of MPI_COMM_WORLD that share this host.
#pragma once

#include <farandole/farandole.h>

#include "mpi_header.h"

namespace fdl::mpi_preload {

struct HostWorld {
  fdl_world* world = nullptr;
  MPI_Comm ranks;   // of this host
  MPI_Group group;  // of `ranks`
  int size = 0;
};

// Starts it after MPI_Init. If one rank of the host cannot, all of them go on without: a line tells the reason.
void start_host_world();
// Ends it before MPI_Finalize, and all communicators with it.
void stop_host_world();
// Lets MPI move messages on. Only in a thread of the program that is inside a function of MPI.
void move_messages();
// While this process has windows: lets MPI take in the messages that arrived before a collective of farandole ended, as
// a collective of MPI would have done. A program may test a window right after a barrier.
void catch_up();
// A communicator of this rank alone, while there is a host world. Tag 0 is taken.
MPI_Comm own_comm();
// Null before the start, after the end, or if this host has none.
const HostWorld* host_world();

}  // namespace fdl::mpi_preload
