// The errors of calls on an ordered communicator that has ended: the call during which it ended has the cause, later
// calls refer to it.
#pragma once

#include "base/status.h"

namespace fdl {

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
