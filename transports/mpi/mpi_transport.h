// The transport over point-to-point messages of MPI.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/status.h"
#include "contract/membership.h"
#include "contract/transport.h"
#include "transports/mpi/mpi_library.h"

namespace fdl {

// Connects this rank with every member whose entry in `peers` is set, over the MPI of this process. All members call
// it. An MPI that differs between members, and a rank outside of MPI_COMM_WORLD, are errors that name both sides.
//
// A peer that ends its transport in order is lost only to ranks that still send to it, or receive more than it sent.
// MPI does not tell of a peer that dies: mpirun ends the job, and until then the coordinator reports it. MPI has no
// descriptor to sleep on: a waiting rank looks for messages at growing intervals of 50 us to 4 ms.
Result<std::unique_ptr<Transport>> connect_mpi(const Membership& membership, const std::vector<bool>& peers);
// The same over a given MPI, which outlives the transport.
Result<std::unique_ptr<Transport>> connect_mpi_over(MpiLibrary& mpi, const Membership& membership,
                                                    const std::vector<bool>& peers);

// A communicator of MPI. The transport and the collectives of one communicator of farandole share it: MPI keeps the
// messages of its own collectives apart. Its end is the worst that one of its users has met.
class MpiGroup {
 public:
  MpiGroup(MpiLibrary& library, MpiComm joined) : mpi(library), comm(joined) {}
  ~MpiGroup() { mpi.end_communicator(comm, end_); }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  void will_end(MpiEnd end) { end_ = std::max(end_, end); }

  MpiLibrary& mpi;
  const MpiComm comm;

 private:
  MpiEnd end_ = MpiEnd::freed;
};

// Makes a communicator of MPI whose ranks are the members, in their order. Collective over the members, with the errors
// of connect_mpi().
Result<std::shared_ptr<MpiGroup>> join_mpi(MpiLibrary& mpi, const Membership& membership);
// Makes the transport on a communicator whose ranks are the members, in their order.
Result<std::unique_ptr<Transport>> make_mpi_transport(std::shared_ptr<MpiGroup> group, const Membership& membership,
                                                      const std::vector<bool>& peers);
// Returns the communicator of a transport that connect_mpi() has made; null for any other transport.
std::shared_ptr<MpiGroup> mpi_group_of(const Transport& transport);

}  // namespace fdl
