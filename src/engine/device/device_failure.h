// as_device_failure() turns any error of a device during a collective into one that ends the communicator.
#pragma once

#include "base/status.h"

namespace fdl {

// The other ranks depend on this rank by then, so the error must not look like a call that was rejected in time.
inline Status as_device_failure(const Status& status) {
  if (status.code() != Code::unsupported && status.code() != Code::invalid_argument) return status;
  Error error = status.error();
  error.code = Code::internal;
  return Status(std::move(error));
}

}  // namespace fdl
