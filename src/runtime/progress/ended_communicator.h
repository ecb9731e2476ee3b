// The errors of calls on an ordered communicator that has ended: the call during which it ended has the cause, later
// calls refer to it.
#pragma once

#include <exception>
#include <new>

#include "base/status.h"
#include "engine/communicator.h"

namespace fdl {

// The failure of this rank that the exception means, as all ranks get it. The process may have no memory for more text.
inline Status failure_of_exception(const Member& me, const std::exception& error) {
  try {
    const Status why = status_of_exception(error);
    // Not a code that ends its call alone.
    const Code code = why.code() == Code::internal ? Code::internal : Code::resource;
    return Status::blame(me.world_rank, me.host_name, code, name_of(me) + ": " + why.text());
  } catch (const std::bad_alloc& shortage) {
    return status_of_exception(shortage);
  }
}

// Ends the communicator after an exception of the standard library in the thread that drives it, and returns why. What
// was interrupted is in an unknown state, so everything in flight ends, on all ranks. Then the engine refers to no
// operation any more.
inline Status end_by_exception(Communicator& comm, const std::exception& error) {
  const Status failure = failure_of_exception(comm.members()[static_cast<std::size_t>(comm.rank())], error);
  comm.interrupt(failure);
  comm.progress();  // carries out the interrupt
  return failure;
}

// Errors of arguments leave the communicator usable, and need no decision.
inline bool ends_only_its_call(const Status& status) {
  return status.ok() || status.code() == Code::invalid_argument || status.code() == Code::unsupported;
}

// `cause` with the consequence for the communicator. A shutdown needs no such remark.
inline Status with_the_end(const Status& cause) {
  if (cause.code() == Code::shut_down) return cause;
  Error error = cause.error();
  error.text += "; this communicator has ended, and later calls on it fail";
  return Status(std::move(error));
}

// The error of a later call: the same code and culprit as those of `cause`.
inline Status ended_earlier(const Status& cause) {
  if (cause.code() == Code::shut_down) return cause;
  Error error = cause.error();
  error.text = "this communicator ended earlier, by: " + error.text;
  return Status(std::move(error));
}

}  // namespace fdl
