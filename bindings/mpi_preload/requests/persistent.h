// Persistent requests of collectives that farandole runs. MPI's side of each is a persistent receive of this rank from
// itself: MPI_Start starts it, and a message of this rank ends it when the collective is done. All functions of MPI that
// wait for requests or test them work on it as on any other.
#pragma once

#include "requests/pending.h"

namespace fdl::mpi_preload {

// Makes the request of that plan, which is not started. Returns a code of MPI.
int keep(const std::shared_ptr<SubmittedComm>& comm, Plan plan, MPI_Comm mpi, MPI_Request* request);

// Whether there is any; costs one load.
bool has_persistent();
// Starts it if it is one of ours; sets the code then.
bool start_if_ours(MPI_Request* request, int& code);
// Before MPI frees a request, and before MPI ends.
void forget(MPI_Request request);
void forget_all();

}  // namespace fdl::mpi_preload
