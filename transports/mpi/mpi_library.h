// MpiLibrary is the MPI of this process, without the types of its header, which differ between the ABIs of MPI.
//
// Nothing is linked against an MPI: the library is opened at run time, and its functions are looked up by name. One
// adaptor for each ABI (Open MPI's, MPICH's) translates.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/config.h"
#include "base/status.h"
#include "data/reduce.h"
#include "schedule/schedule.h"

namespace fdl {

// A communicator and a request of MPI: a number or a pointer, as the ABI has it. 0 is no request.
using MpiComm = uint64_t;
using MpiRequest = uint64_t;

inline constexpr int kFromAnyRank = -1;

enum class MpiEnd {
  freed,      // all peers have left it too
  kept,       // late messages may still come: it exists until the process ends
  abandoned,  // requests are still in flight
};

// One of MPI's own collectives. Counts are elements of `dtype`; those of allgather are bytes, by rank.
struct MpiCollective {
  Collective collective = Collective::barrier;
  Dtype dtype = Dtype::float32;
  Op op = Op::sum;
  int root = 0;
  bool in_place = false;  // this rank's input is in `output` already (MPI_IN_PLACE)
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  const int* counts = nullptr;
  const int* places = nullptr;
};

// A message that was received.
struct MpiArrival {
  int source = 0;
  std::size_t bytes = 0;
};

// Threads: MPI tells at its start how many threads may call it. With MPI_THREAD_MULTIPLE any thread calls at any time.
// With MPI_THREAD_SERIALIZED the calls of farandole exclude each other; those of the program must not run meanwhile.
// With MPI_THREAD_FUNNELED and MPI_THREAD_SINGLE the thread that has started MPI calls alone: see may_call().
class MpiLibrary {
 public:
  virtual ~MpiLibrary() = default;

  // Returns the MPI of this process and starts it if the program has not; then it is finalized when the process ends.
  // Taken is: the library in FARANDOLE_MPI_LIBRARY; else the one that the process has loaded; else that of the
  // launcher.
  static Result<MpiLibrary*> of_process(const Config& config);

  virtual const std::string& description() const = 0;  // "Open MPI v4.1.4 (/usr/lib/libmpi.so.40)"
  virtual int world_rank() const = 0;                  // of MPI_COMM_WORLD
  virtual int world_size() const = 0;

  // Whether the calling thread may call the functions below; wrong_thread() is the error if it may not.
  virtual bool may_call() const = 0;
  virtual Status wrong_thread() const = 0;

  // `hook` runs once, before MPI is finalized, by farandole or by the program, in the thread that does it. Requests
  // must end there; later calls would end the process. One hook; later calls of this function do nothing.
  virtual void before_finalize(void (*hook)()) = 0;

  // Makes a communicator of these ranks of MPI_COMM_WORLD. Collective over them, and blocking: MPI has no other form.
  // `tag` tells apart communicators that are made at the same time.
  virtual Result<MpiComm> make_communicator(std::span<const int> world_ranks, int tag) = 0;
  // Ends its use. MPI_Finalize is called at the end of the process only if all communicators have ended and none was
  // abandoned: it waits for the other ranks, and must not be called while a request is in flight.
  virtual void end_communicator(MpiComm comm, MpiEnd end) = 0;

  // Start a message of at most 1 GiB. The bytes belong to MPI until test() has returned true.
  virtual Status start_send(MpiComm comm, int peer, int tag, ConstBytes bytes, MpiRequest& request) = 0;
  virtual Status start_recv(MpiComm comm, int peer, int tag, Bytes bytes, MpiRequest& request) = 0;
  // Returns whether the request is done; it is then 0. An error ends the request too.
  virtual Result<bool> test(MpiRequest& request, MpiArrival& arrival) = 0;
  // Whether MPI reduces this type by this operation.
  virtual bool can_reduce(Dtype dtype, Op op) const = 0;
  // Starts an allreduce, reduce, broadcast, allgather or barrier. Everything that it names belongs to MPI until test()
  // has returned true.
  virtual Status start_collective(MpiComm comm, const MpiCollective& call, MpiRequest& request) = 0;
  // Takes a receive back. Returns false if MPI has not given the bytes back within a short time.
  virtual bool cancel_recv(MpiRequest& request) = 0;
};

}  // namespace fdl
