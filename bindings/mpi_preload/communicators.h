// Communicators decides which of MPI's communicators have one of farandole, and keeps it as an attribute of MPI's.
//
// All ranks of a communicator must take the same decision. It depends on the number of collectives that they have
// called on it, on what all of them have agreed on through MPI, and on nothing that only one of them knows.
#pragma once

#include <farandole/farandole.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "choice.h"
#include "mpi_header.h"
#include "requests/pending.h"

namespace fdl::mpi_preload {

struct Communicator {
  MPI_Comm mpi;
  int rank = 0;
  int size = 0;
  std::size_t worth = 0;        // of the collectives so far: when it is enough, it gets one of farandole
  bool is_settled = false;      // it has one, or never gets one
  uint64_t ours = 0;            // collectives that farandole ran
  fdl_group* group = nullptr;   // null: the group of all ranks of the host
  fdl_comm* ordered = nullptr;  // null: MPI runs its collectives
  Choices choices;              // of blocking collectives: who runs them
  // For nonblocking collectives: made once there were enough of them. Null: MPI runs those.
  std::shared_ptr<SubmittedComm> submitted;
  std::size_t nonblocking_worth = 0;
  bool is_submitted_settled = false;
};

// For the start and the end of the host's world. A communicator gets one of farandole when its collectives are worth
// that much: one for each call, and one for each 32 KiB. If `is_measuring`, MPI keeps the collectives that it runs
// faster. All ranks give the same arguments.
void open_registry(std::size_t worth, bool is_measuring);
// What farandole did on this rank.
struct Totals {
  uint64_t collectives = 0;
  uint64_t communicators = 0;
};
Totals close_registry();

// Call it once for each blocking collective that farandole could run, on all ranks alike, with the bytes that it moves
// if all ranks know the same number, else 0. Returns null if MPI runs this one. Blocks when the communicator of
// farandole is made, and when a collective is measured. The result lives as long as MPI's communicator.
Communicator* ours(MPI_Comm comm, Family family, std::size_t bytes);
// The same for a nonblocking collective. It never blocks: what it needs is made at a later blocking one.
Communicator* ours_nonblocking(MPI_Comm comm, std::size_t bytes);
// The same for the making of a persistent request, which may block: what it needs is made at once.
Communicator* ours_persistent(MPI_Comm comm);
// The communicator's entry, whoever runs its collectives now. Null if MPI always does.
const Communicator* known(MPI_Comm comm);

}  // namespace fdl::mpi_preload
