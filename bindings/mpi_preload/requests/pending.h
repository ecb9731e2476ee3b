// Pending holds the nonblocking collectives that farandole runs. MPI's side of each is a generalized request, which is
// completed when the program waits for a request or tests one; farandole's progress thread needs no such call.
#pragma once

#include <farandole/farandole.h>

#include <atomic>
#include <functional>
#include <memory>

#include "requests/plan.h"

namespace fdl::mpi_preload {

// A communicator of farandole for submitted calls. Calls in flight keep it alive after MPI's was freed.
class SubmittedComm {
 public:
  explicit SubmittedComm(fdl_comm* comm) : comm_(comm) {}
  ~SubmittedComm() { fdl_comm_destroy(comm_); }
  SubmittedComm(const SubmittedComm&) = delete;
  SubmittedComm& operator=(const SubmittedComm&) = delete;
  fdl_comm* get() const { return comm_; }
  // Whether MPI's communicator has been freed: errors then go to the handler of MPI_COMM_WORLD.
  void set_freed() { is_freed_.store(true, std::memory_order_relaxed); }
  bool is_freed() const { return is_freed_.load(std::memory_order_relaxed); }

 private:
  fdl_comm* comm_;
  std::atomic<bool> is_freed_{false};
};

// Submits the call and makes MPI's request. Returns a code of MPI.
int submit(const std::shared_ptr<SubmittedComm>& comm, Plan plan, MPI_Comm mpi, MPI_Request* request);
// The same for a request that exists. `complete` runs once, in a thread of the program that is inside a function of
// MPI, with the code of the outcome.
int submit_to(MPI_Request request, const std::shared_ptr<SubmittedComm>& comm, std::shared_ptr<const Plan> plan,
              MPI_Comm mpi, std::function<void(int code)> complete);

// Whether any call is in flight; costs one load.
bool has_pending();
// Whether this request is one of ours and in flight.
bool is_pending(MPI_Request request);
// Waits a short time for the request, if it is pending, and lets MPI move its messages on.
void wait_shortly(MPI_Request request);
// Completes the requests of calls that have ended.
void poll_pending();
// Waits for all calls, before MPI ends.
void finish_pending();

}  // namespace fdl::mpi_preload
